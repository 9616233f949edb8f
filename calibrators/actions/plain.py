"""A reply's own words: folded, without what it quotes or shows, cut into sentences.

Code, links, quoted speech, tables, headings and letters drafted for somebody are not the assistant speaking
to the user; they are taken out before anything is read. Each pass is a plain replacement or a pattern that
reads a character a bounded number of times: time is linear in the text, whatever it holds.
"""

import re

_MARKS = {
    **dict.fromkeys("‘’‚‛´ʼ", "'"),
    **dict.fromkeys("“”„‟«»", '"'),
    **dict.fromkeys("？؟", "? "),
    **dict.fromkeys("！。；", ". "),
    **dict.fromkeys("，、", ", "),
    "–": "-",
    "—": " , ",
    "\u202f": " ",
}
_FENCED = re.compile(r"```.*?(?:```|\Z)|~~~.*?(?:~~~|\Z)", re.DOTALL)
_INLINE = re.compile(r"`[^`\n]*`")
# The marks at the end of a link belong to the sentence around it.
_LINK = re.compile(r"(?:https?://|www\.)[^\s<>\"]*[^\s<>\"?!.,;:)\]']")
_QUOTED = re.compile(r'"[^"\n]*"')
# Single quotes are apostrophes too: a quotation opens after a space and closes before none.
_SINGLY_QUOTED = re.compile(r"'(?<=[ \n(]')(?:[^'\n]|(?<=\w)'(?=\w)){1,120}'(?!\w)")
_CORNER_QUOTED = re.compile(r"「[^「」\n]*」|『[^『』\n]*』")
_SHOWN_LINE = re.compile(r"^ *[|>#].*", re.MULTILINE)
_LETTER = re.compile(r"\n *(?:subject:|dear ).*", re.DOTALL)
_QUOTATION = " it "
"""Stands for what was taken out of a sentence, so that the sentence stays whole."""


def plain(text: str) -> str:
    """The text in lower case with straight quotes, without what is shown or quoted."""
    text = text.lower()
    if not text.isascii():
        for mark, straight in _MARKS.items():
            text = text.replace(mark, straight)
    text = _unquoted(text.strip())
    if "```" in text or "~~~" in text:
        text = _FENCED.sub(" ", text)
    if "`" in text:
        text = _INLINE.sub(_QUOTATION, text)
    if "http" in text or "www." in text:
        text = _LINK.sub(_QUOTATION, text)
    if "|" in text or ">" in text or "#" in text:
        text = _SHOWN_LINE.sub("", text)
    if '"' in text:
        text = _QUOTED.sub(_QUOTATION, text)
    if " '" in text:
        text = _SINGLY_QUOTED.sub(_QUOTATION, text)
    if "「" in text or "『" in text:
        text = _CORNER_QUOTED.sub("", text)
    if "\ndear " in text or "\nsubject:" in text:
        text = _LETTER.sub("", text)
    return text


def _unquoted(text: str) -> str:
    """A text that is one quotation as a whole is the reply itself: without its marks."""
    if len(text) > 1 and text[0] == text[-1] == '"' and text.count('"') == 2:
        return text[1:-1]
    return text


def spaced(text: str) -> str:
    """A plain text with one space around each word and mark; ` . ` ends every sentence and nothing else.

    "Sure! Which city, please?" becomes " sure . which city , please ? . ".
    """
    text = f" {text} . "
    for mark, apart in _SPACED:
        text = text.replace(mark, apart)
    while "  " in text:
        text = text.replace("  ", " ")
    return text


_SPACED = (
    ("*", ""),
    *((mark, " ") for mark in "()\t\r"),
    (", ", " , "),
    (": ", " : "),
    *((mark, " . ") for mark in ("\n", "! ", "; ", ". ")),
    ("? ", " ? . "),
)


def sentences(spaced_text: str) -> list[str]:
    """The sentences of a spaced text, in order, each between spaces; none empty, ` ?` at a question's end."""
    return [f" {sentence} " for sentence in spaced_text[1:-1].split(" . ") if sentence.strip(". ?")]
