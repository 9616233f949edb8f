"""Cues for other languages than English: coverage of the common forms, not grammar.

Languages: Spanish, Portuguese, Italian, French, German, Russian, Chinese, Japanese, Korean. A question mark
asks unless the sentence greets or offers help; a refusal is a negated ability in the first person, or an
apology together with a negated ability where the language leaves the subject out.
"""

import re
from functools import cache
from typing import NamedTuple

from calibrators.actions.english import Kind
from calibrators.actions.plain import Sentence

_DECLINES = (
    # Spanish
    "no (?:puedo|podemos|podré|estoy autorizad|estoy en condiciones|soy capaz|tengo (?:acceso|la capacidad|permiso|"
    "una herramienta|ninguna|la posibilidad|forma|información))",
    "no me (?:es posible|está permitido)",
    "lo siento.{0,40}no (?:es posible|se puede|está permitid|dispongo|cuento con)",
    # Portuguese
    "não (?:posso|podemos|consigo|conseguimos|poderei|tenho (?:acesso|permissão|a capacidade|uma ferramenta|como|informaç)|sou capaz|"
    "estou autorizad|me é possível)",
    # Italian
    "non (?:posso|possiamo|potrò|riesco|sono (?:in grado|autorizzat)|ho (?:accesso|la possibilità|il permesso|uno strumento|la capacità)|"
    "mi è possibile)",
    # French
    "je (?:ne (?:peux|puis)|ne suis pas (?:en mesure|autorisé|capable)|n'ai pas (?:accès|la possibilité|l'autorisation|d'outil|"
    "la capacité)|ne dispose pas)",
    "nous ne (?:pouvons|sommes pas en mesure)",
    "il (?:ne m'est pas|m'est im)possible",
    # German
    "(?:ich|wir) (?:kann|darf|können|dürfen)\\b.{0,80}\\b(?:nicht|kein\\w*)",
    "(?:kann|darf|können|dürfen) (?:ich|wir)\\b.{0,80}\\b(?:nicht|kein\\w*)",
    "ich (?:bin nicht (?:in der lage|befugt|berechtigt)|habe (?:leider )?kein\\w* (?:zugriff|zugang|möglichkeit|werkzeug|"
    "funktion|berechtigung))",
    "leider nicht (?:möglich|erlaubt|verfügbar)",
    # Russian
    "(?:я|мы)\\b.{0,20} не (?:могу|можем|имею|умею|смогу|в состоянии)",
    "(?:^ |извините.{0,20}|сожалению.{0,20})не (?:могу|имею|смогу|удаётся)",
    "у меня нет (?:доступа|возможности|прав|инструмент|функци)",
    # Chinese: the subject, or an apology before the negated ability
    "(?:我|我们|我們)[^.!?\\n]{0,8}(?:无法|無法|不能|不可以|没有权限|沒有權限|没有能力|没法|无权|没有(?:访问|可用|相关|相应|这个|该))",
    "(?:抱歉|对不起|對不起|很遗憾|不好意思)[^!?\\n]{0,40}(?:无法|無法|不能|不支持|没有|沒有|不可|不允许)",
    # Japanese
    "(?:申し訳|すみません|すいません|恐れ入りますが|残念ながら|あいにく)[^!?\\n]{0,80}(?:できません|できない|出来ません|いたしかねます|致しかねます|ありません|おりません)",
    "(?:私|わたし|当方|こちら)(?:は|に|で)[^.!?\\n]{0,60}(?:できません|出来ません|いたしかねます|権限がありません)",
    "(?:お手伝い|お答え|対応)(?:する(?:こと)?が?|は|が)?(?:できません|できかねます|いたしかねます)",
    # Korean
    "(?:죄송|미안|유감|아쉽)[^!?\\n]{0,80}(?:수 없|못 ?합니다|못합니다|불가능|않습니다|없습니다)",
    "(?:저는|제가|저희)[^.!?\\n]{0,60}(?:수 없|못 ?합니다|권한이 없)",
)
_ASKS = (
    "(?:por favor|favor de),? (?:indi(?:que|ca)|proporcion|especifi|dime|dígame|compart|confirm|facilit|envíe|inform|forneç|diga|envie|"
    "compartilh)",
    "(?:podrías?|puedes?|podría|pode|poderia) (?:indicar|proporcionar|decir|especificar|confirmar|informar|fornecer|me dizer)",
    "(?:necesito|preciso|ho bisogno|j'ai besoin|ich (?:benötige|brauche)|мне нужн)\\w*",
    "(?:per favore|potresti|può) (?:indic|fornis|specific|conferm|dimmi|dirmi|mi dica)",
    "(?:veuillez|merci de|pouvez-vous|pourriez-vous)(?: me| m')? ?(?:indiquer|préciser|fournir|donner|communiquer|confirmer|dire)",
    "bitte (?:geben|nennen|teilen|sagen|bestätigen|gib|nenne|sag|präzisieren)\\b",
    "(?:пожалуйста,? )?(?:укажите|уточните|сообщите|предоставьте|подтвердите|назовите|скажите)",
    "(?:请问|請問)|(?:请|請|麻烦您?)(?:您|你|先)?(?:提供|告诉|告訴|告知|说明|說明|确认|確認|指定|输入|选择|补充)",
    "(?:教えて|お知らせ|ご指定|ご提供|入力して)(?:くださ|下さ|いただけ|頂け)",
    "(?:です|ます|でしょう|ません)か(?:$|\\.)",
    "(?:알려|말씀해|제공해|입력해|확인해) ?주(?:세요|시겠|십시오|실)",
)
_REPORTS = (
    "\\b(?:he|hemos|ha sido|han sido) (?:\\w+ )?\\w+(?:ado|ido)\\b",
    "\\b(?:foi|foram) \\w+(?:ado|ada|ido|ida)s?\\b",
    "\\b(?:ho|è stato|è stata|sono stati) \\w+(?:ato|ata|ati|ito|ita|uto|uta)\\b",
    "\\b(?:j'ai|a été|ont été) (?:\\w+ )?\\w+(?:é|ée|és|i|is|u)\\b",
    "\\b(?:habe|haben|wurde|wurden)\\b.{0,80} (?:ge\\w+|\\w+(?:iert|ucht|elt))$",
    "(?:已经|已經|已)(?:为您|為您|成功|帮您)?[^.!?\\n]{0,6}(?:取消|预订|更新|提交|删除|创建|发送|完成|修改|添加|退款|设置)",
    "(?:しました|いたしました|完了しました)$",
    "(?:했습니다|되었습니다|완료)",
)
_COURTESY = (
    "algo más|en qué (?:más )?puedo|cómo puedo ayudar|mais alguma coisa|posso ajudar|como posso|qualcos'altro|posso aiutar|"
    "autre chose|puis-je (?:vous )?aider|sonst noch|helfen\\?|weiterhelfen|behilflich|ещё чем|чем (?:я )?могу|могу (?:я )?помочь|"
    "还有什么|还有其他|有什么(?:可以|能)?帮|還有什麼|ほかに|他に何か|お手伝いでき|도와드릴까|무엇을 도와|더 필요",
)
_SPOKEN = re.compile(" (?:the|you|your|is|are|i'm|can't|i've|please) ")


class _Patterns(NamedTuple):
    declines: re.Pattern[str]
    asks: re.Pattern[str]
    reports: re.Pattern[str]
    courtesy: re.Pattern[str]


def is_english(text: str) -> bool:
    """Whether a plain text has no letter that English lacks and a word that only English has."""
    return text.isascii() and _SPOKEN.search(f" {text} ") is not None


def kind(sentence: Sentence) -> Kind | None:
    """What a sentence does by the cues; None where there is none."""
    text, cues = sentence.text, _patterns()
    if cues.courtesy.search(text):
        return Kind.COURTESY
    if cues.asks.search(text):
        return Kind.ASKS
    if cues.declines.search(text):
        return Kind.DECLINES
    return Kind.REPORTS if cues.reports.search(text) else None


@cache
def _patterns() -> _Patterns:
    return _Patterns(*(re.compile("|".join(cues)) for cues in (_DECLINES, _ASKS, _REPORTS, _COURTESY)))
