// Tells what a mark of a chart stands for, beside the pointer. Without it the page lacks only that.
const tip = document.getElementById("tip");
const marked = (event) => event.target.closest?.("[data-tip]");
const show = (event) => {
  const mark = marked(event);
  tip.classList.toggle("on", Boolean(mark));
  if (!mark) return;
  tip.textContent = mark.dataset.tip;
  const { width, height } = tip.getBoundingClientRect();
  tip.style.left = Math.max(4, Math.min(event.clientX + 14, innerWidth - width - 8)) + "px";
  tip.style.top = Math.max(4, event.clientY - height - 12) + "px";
};
document.addEventListener("pointermove", show);
document.addEventListener("pointerdown", show);

// Filters the cases. Without it all of them are there, and each opens by itself.
const filters = document.querySelector(".filters");
if (filters) {
  const cases = [...document.querySelectorAll(".case")];
  const button = filters.querySelector("button");
  const told = filters.querySelector("output");
  const shown = () => cases.filter((one) => !one.hidden);
  const label = () => {
    button.textContent = shown().some((one) => !one.open) ? "Open all" : "Close all";
  };
  const filter = () => {
    const wanted = [...new FormData(filters)].filter(([, value]) => value);
    for (const one of cases) {
      one.hidden = !wanted.every(([name, value]) => one.dataset[name].split("|").includes(value));
    }
    told.textContent = `${shown().length} of ${cases.length} cases`;
    label();
  };
  filters.addEventListener("change", filter);
  filters.addEventListener("submit", (event) => event.preventDefault());
  button.addEventListener("click", () => {
    const open = shown().some((one) => !one.open);
    for (const one of shown()) one.open = open;
  });
  for (const one of cases) one.addEventListener("toggle", label);
  filters.hidden = false;
  filter();
}
