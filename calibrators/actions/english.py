"""What an English sentence of the assistant does, by its grammar.

The questions put to a sentence, in order: does it ask the user for information, does the assistant decline in
it, does it report completion, is it an offer, is it mere courtesy? They rest on three things:

- who the subject is: the assistant (I, we, its tools and abilities), the user, or a thing talked about;
- a negated ability, permission or availability, and a request that the user give something;
- the perfect of a verb of doing for completion.

The words are data below; a pattern starts with a literal space wherever it can, which `re` scans for fast.
Repetition is bounded everywhere, so that a search takes time linear in the sentence.
"""

import re
from enum import Enum
from functools import cache
from typing import NamedTuple

from calibrators.actions.plain import Sentence


class Kind(Enum):
    """What one sentence does."""

    ASKS = "asks"
    """Asks the user for information that what was asked for needs."""
    MAY_ASK = "may ask"
    """An offer, or a condition for going on: asks only where nothing of substance comes before it."""
    DECLINES = "declines"
    """The assistant can't or may not."""
    MAY_DECLINE = "may decline"
    """A limit with no subject of its own: declines only where nothing of substance comes before it."""
    REPORTS = "reports"
    """Reports completion."""
    COURTESY = "courtesy"
    """Greets, apologizes, agrees, closes: nothing of substance."""
    STATES = "states"
    """Anything else: substance."""


def _either(words: str) -> str:
    """Words as alternatives, the longest first."""
    return "(?:" + "|".join(sorted(words.split(), key=len, reverse=True)) + ")"


# ---- words ---------------------------------------------------------------------------------------------------

_GIVE = (
    "(?:provide|specify|tell|share|clarify|confirm|indicate|send|supply|describe|elaborate|rephrase|restate|"
    "mention|verify|explain|advise|upload|attach|paste|identify|state|list|repeat|double-check|narrow|"
    "let me know|let us know|give me|give us|give (?:your|the|more|a|some)|fill in|inform me|remind me|"
    "(?:select|choose|pick|reply with|respond with|answer)"
    ")"
)
"""Verbs by which the user is to give information."""

_ADVICE = (
    "(?:try|contact|consult|visit|refer|reach out|use|wait|call|look|go to|see|check (?:with|back|out|their|its|"
    "local)|consider|note|keep|be|feel free|allow|make sure|ensure|remember)"
)
"""Verbs by which the user is advised: nothing is asked for."""

_ELSEWHERE = (
    "(?! (?:with|directly|in your|on (?:the|their|its)|at (?:the|their)|to (?:the|their)|through|via))"
)
"""Giving to somebody else than the assistant."""

_TOOLS = (
    "(?:tools?|toolset|toolkit|functions?|functionality|functionalities|capability|capabilities|abilities|ability|"
    "apis?|endpoints?|features?|methods?|operations?|plugins?|integrations?|actions?|commands?|services?|resources?|"
    "options?)"
)
_MINE = (
    "(?:my|our|available|provided|given|current|currently available|existing|listed|offered|supplied|enabled|"
    "these|those|accessible)"
)

_HAD = (
    "(?:access|abilit|capabilit|capacity|functionalit|function|tool|permission|authori|means|feature|info|data|"
    "details|knowledge|visibility|insight|real-time|realtime|live|up-to-date|internet|direct|option|"
    "method|api|necessary|required|specific|enough|sufficient|any |a |an |the |that |those |such |this |in |"
    "to |current|personal (?:data|info)|provision|facilit|resources|integration|clearance|your |control|browsing)"
)
"""What the assistant does not have when it declines; its feelings and opinions are not of them."""

_MERELY = (
    "(?: wait| guarantee| promise| stress| recommend| emphasi[sz]e| overstate| say for| be (?:sure|certain)|"
    " imagine| help but| thank| agree more| think of| blame| complain| vouch| speak highly| tell which|"
    " tell what| tell whether| believe| remember)"
)
"""What follows "I can't" where nothing asked for is denied."""

_DONE = (
    "(?:successfully |now |been |already |just |also |all |fully |temporarily |both |"
    "securely |properly |recently |\\w{3,12}ly ){0,2}"
    "(?:cancell?ed|booked|updated|submitted|issued|processed|modified|confirmed|refunded|exchanged|returned|"
    "added|changed|completed|created|deleted|removed|moved|copied|renamed|sent|scheduled|rescheduled|reserved|"
    "ordered|placed|set|saved|uploaded|downloaded|transferred|installed|deployed|fixed|resolved|applied|"
    "enabled|disabled|started|stopped|closed|opened|locked|unlocked|turned|activated|deactivated|registered|"
    "recorded|logged|posted|published|merged|committed|generated|written|made|finished|executed|run|replaced|"
    "renewed|paid|purchased|arranged|assigned|initiated|configured|connected|restarted|sorted|converted|"
    "edited|adjusted|archived|filed|forwarded|shared|printed|implemented|tested|extended|cleared|reset|"
    "restored|notified|retrieved|requested|triggered|launched|drafted|linked|corrected|reverted|appended|"
    "upgraded|downgraded|credited|debited|charged|mounted|blocked|unblocked|approved|rejected|withdrawn)"
)
"""Participles of doing, with their adverbs. A fact in the perfect ("has been delayed") is no completion."""

_ADVERBS = "(?:,? (?:also|still|just|however|therefore|sadly|afraid|only|simply|even|\\w{3,14}ly),?){0,3}"
_CANT = "(?:can't|couldn't|could not|can never|can no longer|can neither)"
_ASIDE = "(?: \\w+){0,3}"

# ---- patterns ------------------------------------------------------------------------------------------------


class _Patterns(NamedTuple):
    """All patterns, compiled once, at the first text."""

    courtesy_question: re.Pattern[str]
    suggestion: re.Pattern[str]
    approval: re.Pattern[str]
    offer: re.Pattern[str]
    interrogative: re.Pattern[str]
    address: re.Pattern[str]
    verbless: re.Pattern[str]
    request: re.Pattern[str]
    conditional: re.Pattern[str]
    need: re.Pattern[str]
    may_need: re.Pattern[str]
    stuck: re.Pattern[str]
    decline: re.Pattern[str]
    tools_decline: re.Pattern[str]
    limit: re.Pattern[str]
    report: re.Pattern[str]
    pending: re.Pattern[str]
    courtesy: re.Pattern[str]


_COURTESY_QUESTION = (
    " (?:anything|something) else|"
    " (?:how|what) (?:can|may|could|else can|else may|might|should) (?:i|we) (?:help|assist|do for|be of|support|serve)|"
    " how (?:can|may) i be of|what brings you|how are you| how's it going| how is your day|"
    " any (?:other|further|more|additional|follow-up) (?:questions|requests|concerns|help|assistance)|"
    " (?:can|may|could|shall) (?:i|we)(?: \\w+ly)? (?:help|assist)(?: you)? (?:with )?(?:any|some|further|more|you|today)|"
    " (?:do|would) you (?:need|have|like|want) (?:any )?(?:more|further|additional|other|some|any)"
    " (?:help|assistance|questions|support)|"
    " (?:does|did|do) (?:that|this|it|these) (?:help|answer|make sense|clarify|work|sound)|"
    " (?:is|was) (?:that|this) (?:clear|helpful|useful)|sounds? (?:good|great)| make sense$"
)
_SUGGESTION = (
    "^ (?:so |well |and |then |or |perhaps )?(?:how about|why not|why don't (?:you|we)|have you (?:tried|considered|"
    "thought|heard|checked|ever)|did you know|do you know (?:that|how)|who knows|guess what|isn't|aren't|"
    f"wasn't|doesn't)|(?:could|can|would|will|might|may) you (?:please |kindly |perhaps )?{_ADVICE}\\b"
)
_APPROVAL = (
    " (?:like|want|shall|should|may|can|okay|ok|ready|happy) (?:for )?(?:me |us |i |we |you )?(?:to )?(?:now |then )?"
    "(?:please )?(?:proceed|go ahead|continue|confirm|finali[sz]e|move forward|place the|submit)"
)
_OFFER = (
    " (?:would you (?:like|prefer|care|want)(?: (?:me|us) to| for me to| to| more| further| additional| some| any|"
    " help| assistance| another| other| information| details| a (?:list|summary|link|quick|brief|more|recommend))|"
    "do you (?:want|wish|need)(?: me| us)?(?: to| more| further| additional| some| any| help| assistance)|"
    "(?:shall|can|could|may|might) (?:i|we) (?!have|ask|get|know|take|please|confirm|assume|use)|"
    "would it (?:help|be helpful)|"
    "(?:are you|would you be) interested in (?:learning|hearing|knowing|seeing|more|any|exploring|finding)|"
    "want (?:me |us )?to (?:know|see|hear|learn))"
)
_INTERROGATIVE = " (?:what|which|who|whom|whose|where|when|how|why)\\b"
_ADDRESS = " (?:you|your|yours|you'd|you're|you've|you'll|yourself|i|we|me|us|please)\\b"
_VERBLESS = (
    "^ (?:looking|need|want|planning|curious|feeling|got|having|wondering|ready|interested|still|craving) "
)

_REQUEST = (
    # Please give; could you give.
    f" (?:please|kindly|pls)(?:,? (?:also|just|kindly|either|first|then|do|at least))? {_GIVE}\\b{_ELSEWHERE}|"
    f" (?:could|can|would|will|may|might) you(?: please| kindly| also| just| perhaps| possibly){{0,2}} {_GIVE}\\b{_ELSEWHERE}|"
    " (?:would|do) you mind (?:\\w{3,14}ing)|"
    # Tell me; let me know which.
    "(?:^|[,:] )(?: ?(?:so|then|and|also|just|first|next|instead),?)? ?(?:tell (?:me|us)|give (?:me|us)|send (?:me|us)|"
    "provide (?:me|us))\\b|"
    " let (?:me|us) know(?:,? (?:what|which|when|where|who|whom|how|your|the|whether|about|more|a|an|exactly|and)\\b|$|:)|"
    # May I have.
    " (?:may|can|could|might) (?:i|we) (?:please )?(?:have|ask|get|know|take)\\b|"
    f" (?:need|ask|want|require|request)(?:ing)? (?:that )?you to {_GIVE}"
)
_KNOW = "(?:know|confirm|verify|clarify|ask|understand|get|have|determine|gather|collect|be sure|double-check|see|pin down)"
_NEED = (
    " (?:i|we)(?:'ll|'d| will| would| do| may| might)?(?: (?:also|just|still|only|first|then|simply|really|actually))?"
    " (?:need|require)(?: from you|:|,)?"
    f"(?: to (?:first )?{_KNOW}\\b(?! (?:access|that|a chance))|"
    " (?!to\\b|access|tool|function|permission|help|time to|direct|you to (?:try|contact|wait|understand))\\S)|"
    f" (?:i|we)(?:'d| would) (?:just |also |first )?(?:like|want|love) to {_KNOW}\\b|"
    " (?:i'm|i am|we're|we are)(?: still| also| just)? missing|"
    f" (?:before|so that|in order for|for me to|so) .{{0,80}} (?:i|we) (?:need|require)|"
    " (?:is|are) (?:still |also )?(?:needed|required) from you"
)
_MAY_NEED = (
    " (?:if|once|when|as soon as|after) you(?: can| could| would|'d|'ve| have| please| be able to)*"
    "(?: please| kindly| also| just)?"
    " (?:provide|tell|share|give|specif|let me|let us|send|clarif|suppl|confirm|indicat|describ|upload|paste)|"
    " (?:it would|it'd|that would|it will) (?:help|be (?:helpful|great|useful|good|nice))|"
    "(?<! since)(?<! as)(?<! because) you (?:haven't|have not|didn't|did not|don't|do not)"
    " (?:specif|provid|mention|includ|give|given|say|said|told|tell|indicat|shar|suppl|stat)|"
    " (?:lacks?|is missing|are missing|missing|without) (?:the |a |some |any )?(?:required |necessary |key |important |specific )?"
    "(?:parameters?|information|details?|values?|arguments?|inputs?|fields?)|"
    " (?:information|details?|parameters?|fields?|inputs?|values?)(?: \\w+){0,3} (?:is|are) (?:also |still )?"
    "(?:required|needed|missing|necessary)|"
    " you(?:'ll| will)? (?:need|have) to (?:provide|specify|tell|give|share) (?:me|us|the|your|more)|"
    " (?:i was wondering|i wonder)|"
    " let (?:me|us) know if|"
    " (?:not sure|unclear|not clear|unsure|don't know) (?:which|what|where|when|who|whether|how|if)"
)
_CONDITIONAL = "(?:^|[,:] )(?: ?(?:sure|so|and|but|also))?,? ?(?:if|should|in case|whenever|when|unless) (?:you|there|any|the|this|that|it)\\b"
_STUCK = (
    " (?:can't|unable to|not able to|won't be able to|couldn't) (?:proceed|continue|go ahead|move forward|complete \\w+|do (?:that|this|so))"
    " (?:\\w+ ){0,4}without (?!access|a tool|tools|the (?:ability|proper|right tool|appropriate))|"
    "without (?:knowing|you (?:providing|telling|specifying))"
)

_FIRST = "(?:i|we)"
_DECLINE = (
    f" {_FIRST}{_ADVERBS} {_CANT}(?!{_MERELY})(?! (?:find any|find a|see any) )|"
    f" {_FIRST}{_ADVERBS} (?:won't|will not|would not|wouldn't)(?: \\w+ly)?"
    f" (?!need|change|touch|forget|charge|keep|take (?:long|effect)|mind|be (?:charged|back|long))|"
    f" {_FIRST}(?:'m| am|'re| are| was| were|'ll be| will be| remain| feel){_ADVERBS} (?:unable|incapable|powerless|unauthori[sz]ed|"
    "not(?: \\w+ly)? (?:able|capable|allowed|permitted|authori[sz]ed|equipped|designed|programmed|configured|"
    "trained|supposed|built|set up|in a position|meant|going to|connected|qualified|made)|"
    "prohibited|forbidden|restricted|limited to|only able to|only allowed to|prevented)|"
    f" {_FIRST}{_ADVERBS} (?:don't|do not|didn't|did not|no longer|doesn't)(?: \\w+ly){{0,2}} (?:seem to |appear to )?have"
    f" (?:\\w+ly )?(?!any (?:questions|feelings|opinions|personal)|a (?:personal|preference|favou?rite)|to\\b|the (?:ability to feel)){_HAD}|"
    f" {_FIRST}{_ADVERBS} (?:don't|do not)(?: \\w+ly)? (?:support|handle|offer|provide|perform|process|see (?:a|any|the) (?:\\w+ )?{_TOOLS}|"
    f"find (?:a|any) (?:\\w+ )?{_TOOLS})|"
    f" {_FIRST}(?:'ve| have){_ADVERBS} (?:no (?!questions|doubt|idea|problem|trouble|issue|record|preference|feelings)|not been (?:given|granted|provided|equipped))|"
    f" {_FIRST}{_ADVERBS} lack\\b|"
    f" {_FIRST}(?:'ll|'d| will| would)?{_ADVERBS} (?:must|have to|need to|am going to have to|to)?(?: \\w+ly)? ?(?:decline|refuse)\\b|"
    f" {_FIRST} (?:can|could|may)(?: currently)? only (?:help|assist|answer|support|handle|work|perform|process|provide|discuss|offer|access|respond)|"
    f" {_FIRST} (?:must not|may not|mustn't|am not the right)|"
    # The subject left out: "Sorry, can't help with that."
    f"^ (?:(?:sorry|apologies|unfortunately|regrettably|regretfully|sadly|no|but|my apologies|i'm sorry|i apologi[sz]e)"
    f"(?: (?:for|about)(?: \\w+){{1,4}})?,? (?:but )?){{0,2}}(?:{_CANT}(?! be)|unable to|not able to|not allowed to)|"
    # Not something I can do; outside what I am allowed to do.
    " (?:not|n't)(?: \\w+ly)? (?:something|anything|one|what|a task|an action|a request|a thing|within what) (?:that )?(?:i|we|my)\\b|"
    " (?:outside|beyond|exceeds?|out of|outwith|past|not within|n't within|not in|not part of|n't part of|falls? outside)"
    " (?:of |the (?:scope|range|reach|limits?|bounds) of )?(?:my|our|what (?:i|we|my|our|these|the)|the (?:scope|capabilit|abilit|"
    "available|provided|given|current|tools?|functions?))|"
    " (?:prevent|prevents|stops?|prohibits?|forbids?|keeps?|restricts?|bars?) (?:me|us) from|"
    " not (?:possible|feasible|permitted|allowed|available) (?:for|to) (?:me|us)\\b"
)
_TOOLS_DECLINE = (
    f" {_MINE}(?: \\w+){{0,2}} {_TOOLS}(?: \\S+){{0,6}}? (?:can't|don't|doesn't|do not|does not|isn't|is not|aren't|are not|"
    "lacks?|unable|only|couldn't|won't|will not|cover none|limited)\\b|"
    f" (?:the|this|that|any) (?:tools?|functions?|toolset|apis?)(?: \\S+){{0,6}}? (?:provided|available|given|at (?:my|our)|i have|i've|here|listed|offered)"
    "(?: \\S+){0,6}? (?:can't|don't|doesn't|do not|does not|isn't|is not|aren't|are not|lacks?|unable|only|won't)\\b|"
    f" none of (?:the|these|those|my|our)(?: \\w+){{0,3}} {_TOOLS}|"
    f" (?:no|n't a|n't any|not a|not any|without a|without any|without the|lack of an?|absence of an?)(?: [\\w-]+){{0,3}}"
    " (?:tools?|functions?|apis?|functionality|capability|plugins?|integrations?)"
    "(?! (?:calls? )?(?:is|are|was|were)? ?(?:need|requir|necessar|call))\\b|"
    f" not (?:\\w+ly )?(?:part of|among|included in|included among|supported by|provided by|available (?:in|through|with|via|among|from|as)|"
    f"possible with|covered by|one of|offered by|listed|compatible with|supported with|possible through|possible using|achievable)(?: \\w+){{0,4}} {_TOOLS}"
)
_LIMIT = (
    f" (?:{_TOOLS}|this|that|it|which|request|task|information|data|access|booking|these|action)(?: \\S+){{0,2}}? (?:is|are|isn't|aren't)(?: not)?"
    "(?: \\w+ly){0,2} (?:not )?(?<!is )(?<!are )(?:supported|available|possible|permitted|allowed|implemented|offered|accessible|enabled|feasible|provided)|"
    " (?:policy|policies|rules?|guidelines|terms)(?: \\S+){0,5}? (?:don't|doesn't|do not|does not|prohibits?|forbids?|prevents?|not)\\b|"
    " (?:not possible|impossible|not feasible|not allowed|not permitted|not supported|not authori[sz]ed|unsupported) |"
    "^ (?:.{0,40}(?:sorry|unfortunately|apologi|regret|afraid).{0,80}) (?:can't be|unable to|could not be|couldn't be|not possible|"
    "isn't possible|not able to|not supported|not something|not available|not within|isn't something|not allowed|isn't allowed|not permitted|"
    "isn't supported|isn't available|ineligible|not eligible)|"
    " (?:system|assistant|model|platform|chatbot|ai)(?: \\S+){0,3}? (?:can't|doesn't|does not|unable|isn't|not) "
)

_REPORT = (
    f" (?:has|have) been {_DONE}\\b|"
    f" (?:i|we)(?:'ve| have|'ve just| have just)? {_DONE}\\b(?! to (?:let|inform|tell))|"
    f" (?:is|are) now {_DONE}\\b|"
    " successfully \\w+ed\\b|\\w+ed successfully|"
    "^ (?:all |everything is |everything's |it's |it is |that's |task |your \\w+ is |you're all |you are all )?"
    "(?:done|finished|all set|complete|completed|wrapped up|set)$|"
    " (?:all set|all done|task (?:is )?complete|tasks (?:are |have been )?complete|no (?:further|additional) actions?)\\b"
)
_PENDING = " (?:once|if|when|after|until|unless|before|whether|as soon as|not|n't|hasn't|haven't) "

_COURTESY = (
    "^(?:,? ?(?:sure|of course|absolutely|certainly|definitely|okay|ok|alright|all right|great|got it|no problem|thanks|"
    "thank you|hello|hi|hey|greetings|welcome|sorry|yes|understood|noted|perfect|sure thing|gladly|right|well|there|"
    "good (?:morning|afternoon|evening|day|question|choice)|great (?:question|choice|idea)|my apologies|apologies|"
    "i'm sorry|i am sorry|i apologi[sz]e|no worries|thanks a lot|excellent|wonderful|fantastic|awesome|but|and|so|also)\\b[,:]?)*+"
    "(?:$|[,:]? (?:"
    "(?:i|we)(?:'d| would|'ll| will|'m| am| can| could)(?: \\w+ly)?(?: be)? (?:happy|glad|delighted|pleased|love|here|help|assist|do that|"
    "gladly|more than happy|sorry|certainly|definitely|try|handle)\\b(?! .{0,60}(?:: |;))|"
    "(?:i|we) (?:understand|see|apologi[sz]e|appreciate|hear|notice|note|realize|gather)\\b|"
    "(?:for|about) (?:the|any|your|that|this|all|reaching|contacting|asking|letting|sharing|providing|getting)\\b|"
    "happy to (?:help|assist)|glad to (?:help|assist)|here to (?:help|assist)|"
    "(?:you're|you are) welcome|let's |let me (?:check|see|help|look|just|make sure|clarify|confirm)|"
    "(?:to|in order to) (?:help|assist|proceed|ensure|provide|give|get started)\\b[^,]{0,60}$|"
    "just to (?:confirm|clarify|be sure|make sure)|(?:it )?(?:looks like|seems|sounds like|appears)(?: that)? (?:you|like you)|"
    "you(?:'ve| have|'d| would|'re| are)? (?:mentioned|want|wanted|asked|like|looking|requested|said|trying|interested)|"
    "(?:please )?let (?:me|us) know if|feel free|don't hesitate|have a (?:great|nice|good|wonderful)|enjoy\\b|"
    "(?:i|we) hope|(?:one|just a) (?:moment|second)|please (?:wait|hold)|help with that|how can i help"
    "))"
)


@cache
def _patterns() -> _Patterns:
    return _Patterns(
        *map(
            re.compile,
            (
                _COURTESY_QUESTION,
                _SUGGESTION,
                _APPROVAL,
                _OFFER,
                _INTERROGATIVE,
                _ADDRESS,
                _VERBLESS,
                _REQUEST,
                _CONDITIONAL,
                _NEED,
                _MAY_NEED,
                _STUCK,
                _DECLINE,
                _TOOLS_DECLINE,
                _LIMIT,
                _REPORT,
                _PENDING,
                _COURTESY,
            ),
        )
    )


def kind(sentence: Sentence, follows: bool) -> Kind:
    """What a sentence does; `follows`: something of substance comes after it."""
    text = sentence.text
    return _question_kind(text, follows) if sentence.question else _statement_kind(text)


def _question_kind(text: str, answered: bool) -> Kind:
    p = _patterns()
    if p.courtesy_question.search(text):
        return Kind.COURTESY
    if p.suggestion.search(text):
        return Kind.STATES
    if p.approval.search(text):
        return Kind.ASKS
    offer = p.offer.search(text)
    if offer and not p.interrogative.search(text, 0, offer.start()):
        return Kind.MAY_ASK
    if answered and (p.verbless.search(text) or not p.address.search(text)):
        return Kind.STATES  # "What is a mutex? It is ...": the assistant answers itself
    return Kind.ASKS


def _statement_kind(text: str) -> Kind:
    p = _patterns()
    if p.request.search(text) or p.need.search(text) or p.stuck.search(text):
        return Kind.MAY_ASK if p.conditional.search(text) else Kind.ASKS
    if p.decline.search(text) or p.tools_decline.search(text):
        return Kind.DECLINES
    if p.limit.search(text):
        return Kind.MAY_DECLINE
    report = p.report.search(text)
    if report and not p.pending.search(text, 0, report.start() + 1):
        return Kind.REPORTS
    if p.may_need.search(text):
        return Kind.MAY_ASK
    if p.courtesy.search(text) or text.count(" ") < 3:
        return Kind.COURTESY
    return Kind.STATES
