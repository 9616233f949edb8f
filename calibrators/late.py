"""Under which role a template takes a message behind the client's own, found from the server alone.

Some templates refuse a late system message, some move it to the front (where it would cost the prefix
cache), some leave it out. So a role serves only if the message changes the prompt, behind what was there.
"""

from collections.abc import Sequence

from calibrators.entry import NoEntry
from calibrators.flow import LateRole
from calibrators.openers.asks import Asking, Tokenizer

ROLES: Sequence[LateRole] = ("system", "developer", "user")

_BEFORE = ({"role": "user", "content": "Where is my parcel?"},)
_TEXTS = ("Check the state.", "Weigh what was asked.")


def late_roles(model: str) -> Asking[Sequence[LateRole]]:
    """The role to use, alone in a sequence; empty where the template takes no late message.

    Raises:
        NoEntry: the server does not tokenize conversations.
    """
    tokenizer = Tokenizer(model)
    before = yield from tokenizer.chat(_BEFORE, add_generation_prompt=False)
    for role in ROLES:
        rendered = []
        try:
            for text in _TEXTS:
                rendered.append((yield from tokenizer.chat([*_BEFORE, {"role": role, "content": text}])))
        except NoEntry:
            continue
        if rendered[0] != rendered[1] and all(ids[: len(before)] == before for ids in rendered):
            return (role,)
    return ()
