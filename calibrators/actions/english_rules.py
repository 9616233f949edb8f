"""The rules of English by which `english` judges a sentence: words and patterns, nothing else.

Patterns run over a sentence of `plain.spaced`: lower case, one space around each word and mark, I for we.
They begin with a literal space where they can, for which `re` scans fast, and bound every repetition, so that
a search takes time linear in the sentence.
"""

from collections.abc import Sequence
from typing import NamedTuple

from calibrators.actions.kinds import Kind
from calibrators.actions.plain import END

# ---- words ---------------------------------------------------------------------------------------


def _any(words: str) -> str:
    """One of these words, as a pattern."""
    return "(?:" + "|".join(words.split()) + ")"


_TOOL_WORDS = """
    ability abilities action actions api apis capabilities capability command commands endpoint endpoints
    feature features function functionalities functionality functions integration integrations method
    methods operation operations option options plugin plugins resources service services system tool
    toolkit tools toolset
"""
_DONE_WORDS = """
    activated added adjusted appended applied approved archived arranged assigned blocked booked cancelled
    canceled changed charged cleared closed committed completed configured confirmed connected converted
    copied corrected created credited deactivated debited deleted deployed disabled downgraded downloaded
    drafted edited enabled exchanged executed extended filed finished fixed forwarded generated
    implemented initiated installed issued launched linked locked logged made merged modified mounted
    moved notified opened ordered paid placed posted printed processed published purchased recorded
    refunded registered removed renamed renewed replaced requested rescheduled reserved reset resolved
    restarted restored returned reverted run saved scheduled sent set shared sorted started stopped
    submitted tested transferred triggered turned unblocked unlocked updated upgraded uploaded withdrawn
    written
"""
"""Participles of doing. A fact in the perfect ("has been delayed") is no completion."""

_GIVE = (
    "(?:advise|answer|attach|choose|clarify|confirm|describe|double-check|elaborate|explain|fill in|"
    "give (?:me|us|your|the|more|a|some)|identify|indicate|inform (?:me|us)|let (?:me|us) know|list|mention|"
    "narrow|paste|pick|provide|remind (?:me|us)|repeat|rephrase|reply with|respond with|restate|select|send|"
    "share|specify|state|supply|tell|upload|verify)"
)
"""Verbs by which the user gives information."""
_ELSEWHERE = (
    "(?! (?:with (?!me|us)|directly|in your|on (?:the|their|its)|at (?:the|their)|to (?:the|their)|through|"
    "via|their|its))"
)
"""Not before these: "Please confirm with the hotel" asks nothing of the user."""
_ADVICE = (
    "(?:allow|call|check (?:with|back|out|their|its|local|the (?:web|app|off))|consider|consult|contact|"
    "feel free|go to|keep|look|make sure|note|reach out|refer|remember|see|try|use|visit|wait)"
)
"""Verbs by which the user is advised, not asked."""
_LEARN = _any("ask clarify collect confirm determine double-check gather get have know see understand verify")
"""Verbs by which the assistant would come to know."""
_HAD = (
    "(?:abilit|access|apis?|authori|capabilit|capacity|clearance|connection|control|data|details|facilit|"
    "features?|functionalit|functions?|info|insight|integration|knowledge|means|memory|method|option to|"
    "permission|privileges|records? of|resources|sensors?|support for|tools?|visibility|way)"
)
"""What the assistant declines for want of; its feelings and opinions are not of them."""
_MERELY = (
    "(?! (?:agree more|be (?:certain|sure)|believe|blame|complain|emphasi[sz]e|guarantee|help but|imagine|"
    "overstate|praise|promise|recommend|remember|say for|speak highly|stress|tell (?:if|wh)|thank|think of|"
    "wait))"
)
"""Not before these: "I can't wait" denies nothing that was asked for."""
_HELP = _any("any another additional further more other some help assistance information details alternative")
"""What an offer offers."""
_CAPABLE = (
    "(?:able|allowed|authori[sz]ed|built|capable|configured|connected|designed|equipped|going to|"
    "in a position|made|meant|permitted|programmed|qualified|set up|supposed|trained)"
)
_OURS = _any("accessible available current existing given listed my offered our provided these those")
_POSSIBLE = _any(
    "allowed available enabled feasible implemented offered permitted possible provided supported"
)

_TOOLS = _any(_TOOL_WORDS)
_DONE = (
    "(?:(?:successfully|now|been|already|just|also|all|both|[a-z]{3,12}ly) ){0,2}"
    f"{_any(_DONE_WORDS)}(?= )"
)
_ADVERBS = "(?: (?:,|also|still|just|however|therefore|afraid|only|simply|even|no longer|[a-z]{3,12}ly)){0,4}"
_LY = "(?: [a-z]{3,12}ly)?"
_SOME = r"(?: \S+){0,4}"
_CANT = "(?:can't|cannot|cant|can not|couldn't|could not|can never|can no longer|can neither)"
_NT = "(?:n't| not)"
_DONT = "(?:don't|doesn't|didn't|(?:do|does|did) not|no longer)"
_NEGATED = (
    "(?:can't|cannot|couldn't|don't|doesn't|isn't|aren't|won't|(?:can|could|do|does|is|are|will) not|unable)"
)
_WH = _any("how if what when where whether which who")

# ---- signals: words without which a rule can't fit -----------------------------------------------

ALWAYS = 0
SELF, ME, NOT, BAR, PAST, TOOL, SORRY, GIVE, NEED, IF, DID, DONE, QUESTION, LAST = (
    1 << bit for bit in range(14)
)
_LIMITED = """barred forbidden incapable lack lacks limited only powerless prevented prohibited restricted
    unable unauthorised unauthorized"""
_SIGNAL_WORDS = {
    SELF: "i i'm i'll i'd i've",
    ME: "me us",
    NOT: f"""aren't can't cannot cant couldn't didn't doesn't don't hasn't haven't ineligible impossible isn't
        mustn't neither never no none not unavailable unsupported wasn't weren't won't wouldn't {_LIMITED}""",
    BAR: f"""bars beyond decline declining exceed exceeding exceeds falls forbid forbids keeps outside prevent
        prevents prohibit prohibits refuse restrict restricts stops within {_LIMITED}""",
    PAST: "could couldn't did didn't was wasn't",
    TOOL: f"""{_TOOL_WORDS} design guidelines instructions knowledge policies policy programming query
        question request role rule rules task terms training""",
    SORRY: "afraid apologies apologise apologize regret regrettably sadly sorry unfortunately",
    GIVE: "please kindly pls clarify confirm give let mind provide send share show specify tell",
    NEED: """like love missing lacks need needed require required could may might would unclear unsure wonder
        wondering""",
    IF: "after if once should soon until unless when whenever without",
    DID: _DONE_WORDS,
    DONE: "been complete completed done finished further additional now set successfully wrapped",
    QUESTION: "?",
}


def _signals_by_word() -> dict[str, int]:
    table: dict[str, int] = {}
    for signal, words in _SIGNAL_WORDS.items():
        for word in words.split():
            table[word] = table.get(word, 0) | signal
    table[END] = LAST
    return table


SIGNALS = _signals_by_word()
"""The signals of each word that has any."""
LEADING = SELF | NOT | BAR | GIVE | NEED | IF | DONE | QUESTION
"""Every rule waits for one of these; a sentence that holds only others needs no look."""

# ---- rules ---------------------------------------------------------------------------------------


class Rule(NamedTuple):
    """A sentence that holds the signals and in which the pattern is found is of that kind."""

    kind: Kind
    signals: int
    pattern: str
    example: str


QUESTIONS: Sequence[Rule] = (
    Rule(Kind.COURTESY, ALWAYS, " (?:anything|something|what) else ", "Is there anything else?"),
    Rule(
        Kind.COURTESY,
        ALWAYS,
        " (?:how|what)(?: else)? (?:can|may|could|might|should) i(?: best)? (?:help|assist|do for|be of|"
        "support|serve)",
        "How can I help you today?",
    ),
    Rule(Kind.COURTESY, ALWAYS, " (?:what brings you|how are you|how's it going) ", "What brings you here?"),
    Rule(
        Kind.COURTESY,
        ALWAYS,
        "(?: do you have| have you got| are there|^) any(?: other| further| more| additional)? (?:questions|"
        "concerns|requests|thoughts)",
        "Any further questions?",
    ),
    Rule(
        Kind.COURTESY,
        ALWAYS,
        " (?:does|did|do|was|is) (?:that|this|it|these) (?:help|answer|clear|clarify|helpful|make sense|"
        "sound|useful|work) ",
        "Does that help?",
    ),
    Rule(Kind.STATES, ALWAYS, " (?:how about|why not|why don't (?:you|i)) ", "How about the Blue Note?"),
    Rule(
        Kind.STATES,
        ALWAYS,
        "^(?: (?:so|well|and|now|,)){0,2} (?:have you (?:considered|ever|heard|thought|tried|checked)|"
        "did you know|do you know (?:that|how)|who knows|guess what|isn't|aren't|wasn't|doesn't) ",
        "Did you know that it opened in 1889?",
    ),
    Rule(
        Kind.ASKS,
        ALWAYS,
        " (?:could|can|would|will|may|might) you(?: (?:please|kindly|also|just|perhaps|possibly|"
        f"mind)){{0,2}} {_GIVE}",
        "Could you please specify the size, or would you like to see more?",
    ),
    Rule(
        Kind.STATES,
        ALWAYS,
        f" (?:could|can|would|may|might) you(?: (?:please|kindly|perhaps)){{0,2}} {_ADVICE}",
        "Could you please try again later?",
    ),
    Rule(
        Kind.ASKS,
        ALWAYS,
        " (?:like|want|shall|should|may|can|okay|ok|ready|happy)(?: for)?(?: me| us| i|"
        " you)?(?: to)?(?: now| then)? (?:confirm|continue|finali[sz]e|go ahead|move forward|place|proceed|"
        "submit) ",
        "Would you like me to go ahead?",
    ),
    Rule(
        Kind.ASKS,
        ALWAYS,
        r" (?:how|what|when|where|which|who|whom|whose)(?: \S+){0,8} (?:would|do|did|should|are|is|can|were|"
        "will) (?:you|i|your) ",
        "Which of the two would you like to book?",
    ),
    Rule(
        Kind.MAY_ASK,
        ALWAYS,
        f" (?:would you (?:care|like|prefer|want)(?: for)?(?: me| us)? (?:to|{_HELP})|(?:do|"
        f"did) you (?:need|want|wish)(?: me| us)? (?:to|{_HELP})|(?:shall|can|could|may|might) i(?! (?:ask|"
        "assume|confirm|get|have|know|please|take|use) )|would it (?:help|be helpful)|(?:are you|"
        "would you be) interested in|is there (?:any|some|a (?:particular|specific|certain))(?:thing)?) ",
        "Would you like me to look for hotels instead?",
    ),
)
"""A question that fits none of these asks, unless the assistant answers it itself."""

ASKING: Sequence[Rule] = (
    Rule(
        Kind.COURTESY,
        IF,
        "(?:^| (?:let (?:me|us) know|hesitate|reach out|free|ask|,)) (?:if|should|whenever|in case) (?:you|"
        f"there)(?:'d|'ve|'s| would| do| is| are| have)?{_SOME} (?:anything|additional|assistance|"
        "change your mind|changes|any (?:more|other|further|additional|questions|issues|concerns|help|"
        "assistance)|further|help with|more (?:help|information|details|questions)|other (?:questions|"
        "requests)|questions) ",
        "Let me know if you need anything else.",
    ),
    Rule(
        Kind.MAY_ASK,
        IF | GIVE,
        "^(?: (?:,|sure|so|and|but|also|however|otherwise)){0,3} (?:if|should|in case|when|whenever|"
        "unless) .{1,160} (?:please|"
        f"kindly) {_GIVE}",
        "If you have a theatre in mind, please share it.",
    ),
    Rule(Kind.MAY_ASK, IF | GIVE | ME, " let (?:me|us) know if ", "Let me know if you prefer the aisle."),
    Rule(
        Kind.ASKS,
        GIVE,
        " (?:please|kindly|pls)(?: (?:,|also|just|kindly|either|first|then|do|at least)){0,2}"
        rf" {_GIVE}\b{_ELSEWHERE}",
        "Please provide the order number.",
    ),
    Rule(
        Kind.ASKS,
        GIVE | NEED,
        " (?:could|would|may|might) you(?: (?:please|kindly|also|just|perhaps|possibly|mind)){0,2}"
        rf" {_GIVE}\b{_ELSEWHERE}",
        "Could you tell me your surname.",
    ),
    Rule(
        Kind.ASKS,
        SELF | NEED,
        " (?:may|could|might) i(?: please)? (?:ask|get|have|know) ",
        "May I have your name.",
    ),
    Rule(
        Kind.ASKS,
        GIVE | ME,
        "(?:^| [,:])(?: (?:so|then|and|also|just|first|next|sure|okay|instead|,)){0,2} (?:give|send|tell|"
        "provide|show) (?:me|us) ",
        "Sure, tell me the city.",
    ),
    Rule(
        Kind.ASKS,
        GIVE | ME,
        " let (?:me|us) know(?: ,)?(?: (?:what(?! you think)|which|when|where|who|whom|how(?! (?:it|that|"
        "this|things|everything))|your|the|whether|about|more|a|an|exactly|any|and|:) | $)",
        "Let me know which one you mean.",
    ),
    Rule(
        Kind.ASKS,
        NEED,
        rf" (?:need|require)(?: that)? you to {_GIVE}\b",
        "I need you to confirm your address.",
    ),
    Rule(
        Kind.ASKS,
        SELF | NEED,
        " i(?:'ll|'d| will| would| do| may| might)?(?: (?:also|just|still|only|first|then|simply|"
        "really)){0,2} (?:need|require)(?: (?:from you|:|"
        f",)){{0,2}} (?:to (?:first |please )?{_LEARN} (?!access|that)|(?!to |access|an? (?:tool|function|"
        "way)|tools?|functions?|permission|help|time to|direct|you to))",
        "To proceed, I'll need the name of the server.",
    ),
    Rule(
        Kind.ASKS,
        SELF | NEED,
        f" i(?:'d| would)(?: (?:just|also|first))? (?:like|want|love) to {_LEARN} ",
        "I'd like to know your budget.",
    ),
    Rule(
        Kind.ASKS, SELF | NEED, " i(?:'m| am)(?: still| also| just)? missing ", "I'm still missing the date."
    ),
    Rule(
        Kind.ASKS,
        NOT | IF,
        rf" (?:{_CANT}|unable to|not able to|won't be able to)(?: \S+){{1,4}} without (?:knowing|"
        "your (?!permission)|(?:further|more) (?:details|info)|you (?:providing|telling|specifying))",
        "I can't proceed without your account number.",
    ),
)
_DECLINING: Sequence[Rule] = (
    Rule(
        Kind.STATES,
        SELF | PAST,
        f" i{_ADVERBS} (?:couldn't|could not|did not|didn't|was(?:n't| not) able to|"
        rf"was unable to)(?: seem to)? (?:find|locate|see|get any) (?!(?:\S+ ){{0,4}}{_TOOLS} )",
        "I couldn't find flights on that day.",
    ),
    Rule(
        Kind.DECLINES,
        SELF | NOT,
        f" i(?<! if i){_ADVERBS} {_CANT}{_MERELY}",
        "I'm sorry, but I can't book flights.",
    ),
    Rule(
        Kind.DECLINES,
        SELF | NOT,
        f" i(?:'m| am| was|'ll be| will be| remain| feel){_ADVERBS} (?:unable|incapable|powerless|"
        "unauthori[sz]ed|barred|forbidden|limited|prevented|prohibited|restricted|only (?:able|allowed|"
        f"designed)|not{_LY} {_CAPABLE})(?! to guarantee)",
        "I am currently unable to set alarms.",
    ),
    Rule(
        Kind.DECLINES,
        SELF | NOT,
        f" i{_ADVERBS} {_DONT}{_LY} (?:(?:seem|appear) to )?(?:have|possess){_SOME} {_HAD}",
        "I don't have access to live data.",
    ),
    Rule(
        Kind.DECLINES,
        SELF | NOT,
        f" i{_ADVERBS} (?:won't|will not|would not|wouldn't){_LY} (?!be (?:charged|back|long)|change|charge|"
        "forget|keep|mind|need|recommend|say|take|touch|worry)",
        "I won't disable the audit log.",
    ),
    Rule(
        Kind.DECLINES,
        SELF | NOT,
        f" i{_ADVERBS} {_DONT}{_LY} (?:handle|offer|perform|process|provide|support|(?:find|see|"
        rf"know of) (?:a|any|the)(?: \S+)? {_TOOLS}) ",
        "I don't see a function for refunds.",
    ),
    Rule(
        Kind.DECLINES,
        SELF | NOT,
        f" i(?:'ve| have){_ADVERBS} (?:no|not been (?:given|granted|provided|equipped))(?: with|"
        f" to)?{_SOME} {_HAD}",
        "I have no way to reach the server.",
    ),
    Rule(Kind.DECLINES, SELF | BAR, f" i{_ADVERBS} lack ", "I lack the permission to do so."),
    Rule(
        Kind.DECLINES,
        SELF | BAR,
        f" i(?:'ll|'d|'m| am| will| would)?{_ADVERBS}(?: (?:must|have to|need to|going to have to|to|"
        f"afraid)){{0,2}}{_LY} (?:decline|declining|refuse) ",
        "I must respectfully decline.",
    ),
    Rule(
        Kind.DECLINES,
        SELF | BAR,
        " i (?:can|could|may)(?: currently)? only (?:access|answer|assist|discuss|handle|help|offer|perform|"
        "process|provide|respond|support|work) ",
        "I can only help with technical tasks.",
    ),
    Rule(Kind.DECLINES, SELF | NOT, " i (?:must not|may not|mustn't) ", "I may not open that file."),
    Rule(
        Kind.DECLINES,
        SELF | NOT,
        rf" i(?:'m| am|'d| can| would| wish) .{{0,100}} (?:and|but|so)(?: (?:therefore|thus))?"
        rf" (?:{_CANT} (?!be )|{_DONT} (?:have|possess){_SOME} {_HAD})",
        "I'm an assistant for parcels and cannot make calls.",
    ),
    Rule(
        Kind.DECLINES,
        NOT,
        "^(?: (?:sorry|apologies|unfortunately|regrettably|sadly|no|but|my apologies|i'm sorry|"
        "i apologi[sz]e|,)){0,4}(?: (?:for|"
        rf"about)(?: \S+){{1,4}} ,)?(?: but)? (?:{_CANT} (?!be )|unable to|not able to|not allowed to)",
        "Sorry, can't help with that.",
    ),
    Rule(
        Kind.DECLINES,
        SELF | NOT,
        f"{_NT}{_LY} (?:something|anything|what|within what|an? (?:action|request|task|thing|"
        "service))(?: that)? i ",
        "That is not something I can do.",
    ),
    Rule(
        Kind.DECLINES,
        BAR,
        " (?:outside|beyond|exceeds?|exceeding|out of|not within|isn't within|not in|falls outside)(?: of)?"
        "(?: the (?:bounds|limits?|range|reach|scope) of)? (?:my|our|what (?:i|my|our|these|the)|"
        "the (?:available|capabilit|current|functions?|given|provided|scope|tools?))",
        "Real-time weather is beyond my capabilities.",
    ),
    Rule(
        Kind.DECLINES,
        NOT | TOOL,
        r" my (?:\S+ )?(?:design|guidelines|instructions|knowledge|policies|programming|role|rules|training)"
        rf"(?: \S+){{0,3}} {_NEGATED} ",
        "My guidelines do not allow me to say.",
    ),
    Rule(
        Kind.DECLINES,
        BAR | ME,
        " (?:bars?|forbids?|keeps?|prevents?|prohibits?|restricts?|stops?) (?:me|us) from ",
        "A rule prevents me from sharing it.",
    ),
    Rule(
        Kind.DECLINES,
        NOT | ME,
        f"(?:{_NT} {_POSSIBLE} (?:for|to)| no way for) (?:me|us) ",
        "It is not possible for me to call them.",
    ),
    # The tools are the subject.
    Rule(
        Kind.DECLINES,
        NOT | TOOL,
        rf" {_OURS}(?: \S+){{0,2}} {_TOOLS}(?: \S+){{0,6}} (?:{_NEGATED}|lacks?|limited to|only) ",
        "The available functions do not include one for refunds.",
    ),
    Rule(
        Kind.DECLINES,
        NOT | TOOL,
        r" (?:the|any|this)(?: \S+)? (?:tools?|functions?|toolset|apis?)(?: (?:that|which|are|is|have|"
        r"been)){0,3} (?:provided|available|given|at my|at our|i have|i've|here|listed|offered)(?: \S+){0,6}"
        f" (?:{_NEGATED}|lacks?|only) ",
        "The functions I have cannot do this.",
    ),
    Rule(
        Kind.DECLINES,
        NOT | TOOL,
        rf" (?:none|neither|not one) of (?:the|these|those|my|our)(?: \S+){{0,3}} {_TOOLS} ",
        "None of the available tools can do this.",
    ),
    Rule(
        Kind.DECLINES,
        NOT | TOOL,
        " (?:no|(?:isn't|aren't|not|don't see|don't find) (?:a|an|any))(?: [a-z-]+){0,3} (?:tools?|"
        "functions?|apis?|functionality|capability|plugins?|integrations?) (?!(?:calls? )?(?:(?:is|are|was|"
        "were) )?(?:calls?|need|requir|necessar|used))",
        "There is no function for cancelling orders.",
    ),
    Rule(
        Kind.DECLINES,
        NOT | TOOL,
        f"{_NT}{_LY} (?:achievable|among|available|compatible|covered|included|listed|offered|one of|"
        rf"part of|possible|provided|supported)(?: \S+){{0,5}} {_TOOLS} ",
        "That is not part of the available tools.",
    ),
    # The limit is not the assistant's own.
    Rule(
        Kind.MAY_DECLINE,
        NOT,
        rf"(?:^| ,| but) (?:that|this|it|the|such)(?: \S+){{0,3}}?(?:'s| is| are|(?= (?:isn't|aren't))"
        rf")(?: isn't| aren't| not){_LY} {_POSSIBLE}(?: (?:at (?:the|this) (?:moment|time|point)|right now|"
        "yet|here|currently|to me))? $",
        "This feature is not supported.",
    ),
    Rule(
        Kind.MAY_DECLINE,
        NOT | TOOL,
        rf" (?:that|the|this|your)(?: \S+)? (?:action|operation|query|question|request|task)s? {_CANT} be ",
        "This request cannot be completed.",
    ),
    Rule(
        Kind.MAY_DECLINE,
        NOT | TOOL,
        rf" (?:guidelines|policies|policy|rules?|terms)(?: \S+){{0,5}}? {_DONT} ",
        "Our policy does not allow changes after departure.",
    ),
    Rule(
        Kind.MAY_DECLINE,
        NOT | SORRY,
        "^ (?:.{0,30} )?(?:afraid|apologies|apologi[sz]e|regret|regrettably|sorry|unfortunately|"
        "sadly) .{0,120}"
        f"(?: (?:{_CANT} be|unable to|ineligible|impossible|unsupported)|{_NT}{_LY} (?:able to|"
        "authori[sz]ed|eligible|something|within|allowed|permitted|possible|supported)) ",
        "Unfortunately, your reservation cannot be cancelled.",
    ),
    Rule(
        Kind.MAY_DECLINE,
        NOT | TOOL,
        rf" (?:the|this) system(?: \S+){{0,2}} {_NEGATED} ",
        "The system does not allow refunds.",
    ),
)
_NEEDING: Sequence[Rule] = (
    Rule(
        Kind.MAY_ASK,
        IF,
        " (?:if|once|when|as soon as|after) you(?:'d|'ve)?(?: (?:can|could|would|have|please|kindly|also|"
        "just)){0,2} (?:clarif|confirm|describ|give|indicat|let me|let us|paste|provide|send|share|specif|"
        "suppl|tell|upload)",
        "Once you share the city, I can look it up.",
    ),
    Rule(
        Kind.MAY_ASK,
        NEED,
        " (?:it|that)(?:'d| would) (?:help|be (?:helpful|great|useful|good|nice)) ",
        "It would help to know the year.",
    ),
    Rule(
        Kind.MAY_ASK,
        NOT,
        " you(?<! since you)(?<! as you)(?<! because you) (?:haven't|didn't|don't|(?:have|did|do) not)"
        " (?:give|given|includ|indicat|mention|provid|said|say|shar|specif|stat|suppl|tell|told)",
        "You didn't specify the city.",
    ),
    Rule(
        Kind.MAY_ASK,
        NEED,
        " (?:missing|lacks?)(?: (?:the|a|some|any|required|necessary|important|specific)){0,3}"
        " (?:arguments?|details?|fields?|information|inputs?|parameters?|values?) | (?:arguments?|details?|"
        r"fields?|information|inputs?|parameters?|values?)(?: \S+){0,3}? (?:is|are)(?: also|"
        " still)? (?:missing|necessary|needed|required) ",
        "The request is missing the required parameter for the city.",
    ),
    Rule(
        Kind.MAY_ASK,
        NEED,
        " you(?:'ll| will)? need to (?:give|provide|share|specify|tell) (?:me|us|the|your|more) ",
        "You'll need to provide the account number.",
    ),
    Rule(
        Kind.MAY_ASK,
        NEED,
        f" (?:unclear|unsure|wonder|wondering) {_WH} ",
        "It is unclear which account you mean.",
    ),
    Rule(
        Kind.MAY_ASK,
        NOT,
        rf" (?:not|don't|isn't|wasn't|couldn't)(?: \S+)? (?:sure|clear|know|tell) {_WH} ",
        "I'm not sure which account you mean.",
    ),
)
_REPORTING: Sequence[Rule] = (
    Rule(
        Kind.STATES,
        DONE | IF,
        r" (?:if|once|unless|until|when|whether|as soon as)(?: \S+){0,8} (?:has|have|is|are|i|i've) ",
        "Once your order has been shipped, a mail follows.",
    ),
    Rule(
        Kind.REPORTS,
        DONE | DID,
        f" (?:(?:has|have) been|(?:is|are) now) {_DONE}| successfully [a-z]+(?:ed|t|n) |"
        " [a-z]+ed successfully ",
        "Your booking has been cancelled.",
    ),
    Rule(Kind.REPORTS, SELF | DID, f" i(?:'ve| have)? {_DONE}", "I have cancelled order 88."),
    Rule(
        Kind.REPORTS,
        DONE,
        "^(?: (?:all|everything is|everything's|it's|it is|that's|that is|task|the task is|you're|you are|"
        ",)){0,2} (?:complete|completed|done|finished|set|wrapped up) $| (?:all (?:done|set)|tasks? (?:is |"
        "are )?completed?|no (?:additional|further) actions?) ",
        "All done.",
    ),
)
STATEMENTS: Sequence[Rule] = (*ASKING, *_DECLINING, *_NEEDING, *_REPORTING)
"""A statement that fits none of these is a courtesy or states something."""

COURTESY = (
    "^(?: (?:,|absolutely|alright|all right|also|and|apologies|awesome|but|certainly|definitely|excellent|"
    "fantastic|gladly|good (?:afternoon|choice|day|evening|morning|question)|got it|great(?: choice| idea|"
    " question)?|greetings|hello|hey|hi|i apologi[sz]e|i'm sorry|i am sorry|my apologies|no (?:problem|"
    "worries)|noted|of course|ok|okay|perfect|right|so|sorry|sure(?: thing)?|thank you|thanks(?: a lot)?|"
    "there|understood|welcome|well|wonderful|yes)(?= )){0,6}+(?: $| (?:i(?:'d| would|'ll| will|'m| am| can|"
    " could)(?: [a-z]+ly)?(?: be)?(?: more than)? (?:assist|certain|delighted|definitely|do that|glad|"
    "handle|happy|help|here|love|pleased|sorry|try) |i (?:apologi[sz]e|appreciate|gather|hear|note|notice|"
    "realize|see|understand) |(?:for|about) (?:all|any|asking|contacting|getting|letting|providing|reaching|"
    "sharing|that|the|this|your) |(?:glad|happy|here) to (?:assist|help) |(?:you're|you are) welcome |"
    "let's |let me (?:check|clarify|confirm|help|just|look|see) |(?:to|in order to) (?:assist|ensure|"
    "get started|give|help|proceed|provide) [^,]{0,60} $|just to (?:be sure|clarify|confirm|make sure) |"
    "(?:it )?(?:appears|looks like|seems|sounds like)(?: that)?(?: like)? you |you(?:'ve|'d|'re| have|"
    " would| are)? (?:asked|interested|like|looking|mentioned|requested|said|trying|want|wanted) |"
    "don't hesitate |enjoy |feel free |have a (?:good|great|lovely|nice|wonderful) |i hope |(?:one|"
    "just a) (?:moment|second) |please (?:hold|wait) |help with that ))"
)
ADDRESS = " (?:you|your|yours|you'd|you're|you've|you'll|yourself|i|me|us|please|should) "
EXPLANATION = (
    "^ (?:(?:this|that|it|knowing)(?: \\S+){0,4} (?:would|will|helps?|allows?|lets)|i |i'll |please |also |"
    "for (?:example|instance) |options |available |choices )"
)
VERBLESS = (
    "^ (?:craving|curious|feeling|got|having|interested|looking|need|planning|ready|still|want|wondering) "
)
PLURAL = (
    (" we're ", " i'm "),
    (" we are ", " i am "),
    (" we were ", " i was "),
    (" we ", " i "),
    (" we'", " i'"),
)
