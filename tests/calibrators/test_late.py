"""Which role a late message may have, found by rendering; the templates are those of real families' kinds."""

from collections.abc import Callable

import pytest
from jinja2 import Environment
from jinja2.exceptions import TemplateError

from calibrators.entry import NoEntry
from calibrators.late import late_roles
from calibrators.openers import answered
from calibrators.openers.asks import Answer, Ask

PLAIN = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}"
REFUSES = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('late') }}"
    "{% endif %}<{{ m.role }}>{{ m.content }}</>{% endfor %}"
)
TO_THE_FRONT = (
    "{% for m in messages if m.role == 'system' %}{{ m.content }}{% endfor %}"
    "{% for m in messages if m.role != 'system' %}<{{ m.role }}>{{ m.content }}</>{% endfor %}"
)
LEAVES_OUT = (
    "{% for m in messages if m.role in ('user', 'assistant') %}<{{ m.role }}>{{ m.content }}</>{% endfor %}"
)
ALTERNATES = (
    "{% for m in messages %}{% if m.role != ('user' if loop.index0 % 2 == 0 else 'assistant') %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}<{{ m.role }}>{{ m.content }}</>{% endfor %}"
)


def serving(template: str) -> Callable[[Ask], Answer]:
    """A server's /tokenize: one token a character."""

    def refuse(why: str) -> None:
        raise TemplateError(why)

    environment = Environment()
    environment.globals["raise_exception"] = refuse
    compiled = environment.from_string(template + "{% if add_generation_prompt %}<assistant>{% endif %}")

    def answer(ask: Ask) -> Answer:
        settings = {"add_generation_prompt": True} | dict(ask.body)
        try:
            return {"tokens": [ord(c) for c in compiled.render(settings)]}
        except TemplateError as error:
            return {"error": {"message": str(error)}}

    return answer


@pytest.mark.parametrize(
    ("template", "roles"),
    [
        (PLAIN, ("system",)),
        (REFUSES, ("developer",)),
        (TO_THE_FRONT, ("developer",)),  # a message moved to the front would cost the prefix cache
        (LEAVES_OUT, ("user",)),
        (ALTERNATES, ()),
    ],
)
def test_the_first_role_whose_message_comes_last_is_found(template: str, roles: tuple[str, ...]) -> None:
    assert answered(late_roles("m"), serving(template)) == roles


def test_a_server_that_does_not_tokenize_says_so() -> None:
    with pytest.raises(NoEntry):
        answered(late_roles("m"), lambda _: {"error": "not found"})
