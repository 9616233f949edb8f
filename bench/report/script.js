// Tells what a mark of a chart stands for, beside the pointer. Without it the page lacks only that.
const tip = document.getElementById("tip");
const told = (event) => event.target.closest?.("[data-tip]");
const show = (event) => {
  const mark = told(event);
  tip.classList.toggle("on", Boolean(mark));
  if (!mark) return;
  tip.textContent = mark.dataset.tip;
  const { width, height } = tip.getBoundingClientRect();
  tip.style.left = Math.max(4, Math.min(event.clientX + 14, innerWidth - width - 8)) + "px";
  tip.style.top = Math.max(4, event.clientY - height - 12) + "px";
};
document.addEventListener("pointermove", show);
document.addEventListener("pointerdown", show);
