"""A reply's own words: folded, without what it quotes or shows, cut into sentences.

Code, links, quoted speech, tables, headings and letters drafted for somebody are not the assistant speaking to
the user; they are blanked before anything is read. Each pass is a plain replacement or a pattern that reads
each character a bounded number of times, so a text costs time linear in its length, whatever it holds.
"""

import re
from typing import NamedTuple

_FOLDED = {
    **dict.fromkeys("‘’‚‛´ʼ", "'"),
    **dict.fromkeys("“”„‟«»", '"'),
    **dict.fromkeys("？؟⁇", "? "),
    "！": "! ",
    "。": ". ",
    "；": "; ",
    "，": ", ",
    "\u00a0": " ",
    "\u202f": " ",
}
_ALWAYS_FOLDED = {
    "\r": "\n",
    "\t": " ",
    "*": "",
    "(": "( ",
    "—": " — ",
    "cannot": "can't",
    "can not": "can't",
}

_FENCED = re.compile(r"```.*?(?:```|\Z)|~~~.*?(?:~~~|\Z)", re.DOTALL)
_INLINE = re.compile(r"`[^`\n]*`")
# A mark at the end of a link belongs to the sentence around it.
_LINK = re.compile(r"[a-z]+://[^\s<>\"]*[^\s<>\"?!.,;:)\]']|\bwww\.[^\s<>\"]*[^\s<>\"?!.,;:)\]']")
_QUOTED = re.compile(r'"[^"\n]*"')
# Single quotes are apostrophes too: an opening one follows a space, a closing one comes before none.
_SINGLY_QUOTED = re.compile(r"(?<=[\s(])'(?:[^'\n]|(?<=\w)'(?=\w)){1,120}'(?!\w)")
_CORNER_QUOTED = re.compile(r"「[^」\n]*」|『[^』\n]*』")
_SHOWN_LINE = re.compile(r"^ *[|>#].*", re.MULTILINE)
_LETTER = re.compile(r"\n *(?:subject:|dear ).*", re.DOTALL)
_END = re.compile(r"[.!?;\n](?=\s)")
_LONGEST = 600
"""Characters of a sentence that are read; a longer one is a dump and not a sentence."""


class Sentence(NamedTuple):
    """One sentence of the plain text: lower case, one space before each word, a question or not."""

    text: str
    question: bool


def plain(text: str) -> str:
    """The text in lower case with straight quotes and apostrophes, what is shown or quoted blanked."""
    text = text.lower()
    if not text.isascii():
        for typographic, straight in _FOLDED.items():
            text = text.replace(typographic, straight)
    for written, straight in _ALWAYS_FOLDED.items():
        text = text.replace(written, straight)
    text = _unquoted(text.strip())
    if "```" in text or "~~~" in text:
        text = _FENCED.sub(" ", text)
    if "`" in text:
        text = _INLINE.sub(" it ", text)
    if "://" in text or "www." in text:
        text = _LINK.sub(" it", text)
    if "|" in text or ">" in text or "#" in text:
        text = _SHOWN_LINE.sub("", text)
    if '"' in text:
        text = _QUOTED.sub(" it ", text)
    if " '" in text:
        text = _SINGLY_QUOTED.sub(" it ", text)
    if "「" in text or "『" in text:
        text = _CORNER_QUOTED.sub("", text)
    if "\ndear " in text or "\nsubject:" in text:
        text = _LETTER.sub("", text)
    return text


def _unquoted(text: str) -> str:
    """A text that is one quotation as a whole, without its marks: then it is the reply itself."""
    if len(text) > 1 and text[0] == text[-1] == '"' and '"' not in text[1:-1]:
        return text[1:-1]
    return text


def sentences(text: str) -> list[Sentence]:
    """The sentences of a plain text, in order; none of them empty."""
    found = []
    start = 0
    text += "\n "
    for end in _END.finditer(text):
        sentence = text[start : end.start()].strip()
        start = end.end()
        if sentence:
            found.append(Sentence(" " + sentence[:_LONGEST], end[0] == "?"))
    return found
