"""A reply's own words: folded, without what it quotes or shows, cut into sentences.

Code, quoted speech, tables, headings and letters drafted for somebody are not the assistant speaking to the
user; they are taken out before anything is read. A mark inside a link ends no sentence: no space follows it.
Each pass is a plain replacement or a pattern that reads a character a bounded number of times: time is linear
in the text, whatever it holds.
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
_QUOTED = re.compile(r'"[^"\n]*"')
# Single quotes are apostrophes too: a quotation opens after a space and closes before none.
_SINGLY_QUOTED = re.compile(r"'(?<=[ \n(]')(?:[^'\n]|(?<=\w)'(?=\w)){1,120}'(?!\w)")
_CORNER_QUOTED = re.compile(r"「[^「」\n]*」|『[^『』\n]*』")
_SHOWN_LINE = re.compile(r"^ *[|>#].*", re.MULTILINE)
_LETTER = re.compile(r"\n *(?:subject:|dear ).*", re.DOTALL)
END = "\n"
"""The word that ends a sentence of a spaced text."""
_QUOTATION = " it "
"""Stands for what was taken out of a sentence, so that the sentence stays whole."""


def plain(text: str) -> str:
    """The text in lower case with straight quotes, without what is shown or quoted."""
    if not text.isascii():
        for mark, straight in _MARKS.items():
            text = text.replace(mark, straight)
    text = _unquoted(text.strip().lower())
    if "`" in text or "~" in text:
        text = _INLINE.sub(_QUOTATION, _FENCED.sub(" ", text))
    if "|" in text or ">" in text or "#" in text:
        text = _SHOWN_LINE.sub("", text)
    if '"' in text:
        text = _QUOTED.sub(_QUOTATION, text)
    if " '" in text:
        text = _SINGLY_QUOTED.sub(_QUOTATION, text)
    if "「" in text or "『" in text:
        text = _CORNER_QUOTED.sub("", text)
    if "\n" in text:
        text = _LETTER.sub("", text)
    return text


def _unquoted(text: str) -> str:
    """A text that is one quotation as a whole is the reply itself: without its marks."""
    if len(text) > 1 and text[0] == text[-1] == '"' and text.count('"') == 2:
        return text[1:-1]
    return text


def spaced(text: str) -> str:
    """A plain text as words, one space around each; commas, colons, `?` and ends of sentences are words.

    "Sure! Which city, please?" becomes " sure \\n which city , please ? \\n ".
    """
    text = f" {text} "
    for mark, apart in _SPACED:
        if mark[0] in text:  # many times faster than to look for both characters
            text = text.replace(mark, apart)
    while "  " in text:
        text = text.replace("  ", " ")
    return text


_SPACED = (
    ("*", ""),
    *((mark, " ") for mark in "()\t\r"),
    ("\n", f" {END} "),
    (", ", " , "),
    (": ", " : "),
    ("?!", "?"),
    *((mark, f" {END} ") for mark in (". ", "! ", "; ")),
    ("? ", f" ? {END} "),
)
