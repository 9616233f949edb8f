"""Cues for other languages than English: the common forms, not grammar.

A question mark asks, unless the sentence offers help; a request for information asks without one. A refusal
is a negated ability in the first person, or after an apology where the language leaves the subject out.
"""

import re
from collections.abc import Sequence
from functools import cached_property

from calibrators.actions.kinds import Kind


class Language:
    """The cues of one language, patterns over a sentence of `plain.spaced`."""

    def __init__(self, words: str, courtesy: str, asks: str, declines: str, reports: str) -> None:
        """words: common ones that tell it from the others, or a pattern of its script in brackets."""
        self.script = re.compile(words) if words.startswith("[") else None
        self.words = frozenset(() if self.script else words.split())
        self._cues = (
            (Kind.COURTESY, courtesy),
            (Kind.ASKS, asks),
            (Kind.DECLINES, declines),
            (Kind.REPORTS, reports),
        )

    @cached_property
    def _patterns(self) -> tuple[tuple[Kind, re.Pattern[str]], ...]:
        return tuple((kind, re.compile(cues)) for kind, cues in self._cues)

    def kind(self, sentence: str) -> Kind | None:
        """What a sentence does by the cues; None where there is none."""
        if self.script is not None and sentence.isascii():
            return None
        for kind, pattern in self._patterns:
            # Only a question is a courtesy: "Puedo ayudar" offers help, "no puedo ayudar" doesn't.
            if (kind is not Kind.COURTESY or sentence.endswith(" ? ")) and pattern.search(sentence):
                return kind
        return None


SPANISH = Language(
    "el la los las de que en para por su una lo con es del al se no me qué cuál puedo está siento he hola",
    courtesy=" (?:algo más|en qué (?:más )?puedo|cómo puedo ayudar|puedo ayudar)",
    asks=" (?:por favor|favor de)(?: ,)? (?:dime|dígame|indi|propor|especif|compart|confirm|facilit|envíe)|"
    " (?:podrías?|puedes?|podría) (?:indicar|proporcionar|decir|especificar|confirmar)| necesito (?!acceso)",
    declines=" no (?:puedo|podemos|podré|soy capaz|estoy (?:autorizad|en condiciones)|tengo (?:acceso|"
    "la capacidad|permiso|una herramienta|ninguna|la posibilidad|forma|información)|me (?:es posible|"
    "está permitido))| (?:lo siento|lamento|desafortunadamente|lamentablemente) .{0,60}no (?:es posible|"
    "se puede|está permitid|dispongo)",
    reports=r" (?:he|hemos|ha sido|han sido)(?: \S+)? [^ ]{3,}(?:ado|ido|ada|ida)s? ",
)
PORTUGUESE = Language(
    "o os as de que em para por seu uma com é do da não você qual preciso posso está ao favor desculpe me",
    courtesy=" (?:mais alguma coisa|posso ajudar|como posso)",
    asks=" por favor(?: ,)? (?:inform|forneç|diga|envie|compartilh|confirm|especif|indi)|"
    " (?:pode|poderia) (?:informar|fornecer|me dizer|confirmar|especificar|indicar)| preciso (?!de acesso)",
    declines=" não (?:posso|podemos|consigo|conseguimos|poderei|sou capaz|estou autorizad|me é possível|"
    "tenho (?:acesso|permissão|a capacidade|uma ferramenta|como|informaç))| (?:desculpe|infelizmente|"
    "lamento) .{0,60}não (?:é possível|é permitid)",
    reports=r" (?:foi|foram)(?: \S+)? [^ ]{3,}(?:ado|ada|ido|ida)s? ",
)
ITALIAN = Language(
    "il lo gli le di che per un una con è del della non quale posso ho sono tuo suo mi dispiace favore",
    courtesy=" (?:qualcos'altro|altro|posso aiutar|come posso)",
    asks=" (?:per favore|per cortesia)(?: ,)? (?:indic|fornis|specific|conferm|dimmi|mi dica|dirmi)|"
    " (?:potresti|potrebbe|può|puoi) (?:indic|fornir|specific|conferm|dirmi)| ho bisogno (?!di accesso)",
    declines=" non (?:posso|possiamo|potrò|riesco|sono (?:in grado|autorizzat)|mi è possibile|"
    "ho (?:accesso|la possibilità|il permesso|uno strumento|la capacità))| (?:mi dispiace|"
    "purtroppo) .{0,60}non (?:è possibile|è consentit)",
    reports=r" (?:ho|è stat[oa]|sono stat[ie])(?: \S+)? [^ ]{3,}(?:ato|ata|ati|ate|ito|ita|uto|uta) ",
)
FRENCH = Language(
    "le la les des de que pour un une avec est du vous je ne pas quelle votre dans veuillez suis merci nous",
    courtesy=" (?:autre chose|(?:puis-je|comment puis-je) (?:vous )?aider)",
    asks=" (?:veuillez|merci de|pouvez-vous|pourriez-vous)(?: me| m')? ?(?:indiquer|préciser|fournir|donner|"
    "communiquer|confirmer|dire)| j'ai besoin (?!d'accès)",
    declines=" (?:je ne (?:peux|puis|suis pas (?:en mesure|autorisé|capable)|dispose pas|parviens pas)|"
    "je n'ai pas (?:accès|la possibilité|l'autorisation|d'outil|la capacité)|nous ne (?:pouvons|"
    "sommes pas en mesure)|il (?:ne m'est pas|m'est im)possible)| (?:désolé|"
    "malheureusement) .{0,60}(?:impossible|pas possible)",
    reports=r" (?:j'ai|a été|ont été)(?: \S+)? [^ ]{3,}(?:é|ée|és|ées|i|is|ise|u) ",
)
GERMAN = Language(
    "der die das den dem ich ist nicht und ein eine für mit sie wir zu auf welche bitte leider kann habe",
    courtesy=" (?:sonst noch|(?:kann|darf) ich .{0,40}(?:helfen|behilflich)|wie kann ich)",
    asks=" bitte (?:geben|nennen|teilen|sagen|bestätigen|gib|nenne|sag|präzisieren) |"
    " ich (?:benötige|brauche) (?!zugriff|zugang)",
    declines=" (?:ich|wir) (?:kann|darf|können|dürfen) .{0,80}(?:nicht|kein)|"
    " (?:kann|darf|können|dürfen) (?:ich|wir) .{0,80}(?:nicht|kein)| ich bin nicht (?:in der lage|befugt|"
    "berechtigt)|(?: ich habe| habe ich) (?:leider )?kein| leider (?:ist .{0,40})?nicht (?:möglich|erlaubt|"
    "verfügbar)",
    reports=r" (?:habe|haben|wurde|wurden) .{0,80} (?:ge[^ ]+|[^ ]+(?:iert|ucht|elt|öscht))(?: worden)? $",
)
RUSSIAN = Language(
    "[\u0400-\u04ff]",
    courtesy="ещё чем|чем (?:я )?(?:могу|ещё)|могу (?:я )?помочь",
    asks="(?:укажите|уточните|сообщите|предоставьте|подтвердите|назовите|скажите)| мне нужн",
    declines="(?: я | мы | сожалению| извините| простите).{0,30} не "
    "(?:могу|можем|имею|умею|смогу|в состоянии|удаётся)|^ не (?:могу|имею|смогу) |у меня нет (?:доступа|"
    "возможности|прав|инструмент|функци)",
    reports=" (?:отменён|отменен|забронирован|обновлен|обновлён|удалён|удален|создан|отправлен)",
)
JAPANESE = Language(
    "[\u3040-\u30ff]",
    courtesy="ほかに|他に何か|お手伝いでき|お役に立て",
    asks="(?:教えて|お知らせ|ご指定|ご提供|入力して)(?:くださ|下さ|いただけ|頂け)|"
    "(?:です|ます|でしょう|ません)か $",
    declines="(?:申し訳|すみません|恐れ入りますが|残念ながら|あいにく).{0,80}(?:でき|出来|かねます|ありません|おりません)|"
    "(?:私|当方|こちら)(?:は|に|で).{0,60}(?:できません|出来ません|かねます|権限がありません)|(?:お手伝い|お答え|対応)(?:すること)?(?:が|は)?(?:できません|"
    "できかねます|いたしかねます)",
    reports="(?:しました|いたしました) $",
)
CHINESE = Language(
    "[\u4e00-\u9fff]",
    courtesy="还有什么|还有其他|有什么(?:可以|能)?帮|還有什麼|需要其他",
    asks="请问|請問|(?:请|請|麻烦您?)(?:您|你|先)?(?:提供|告诉|告訴|告知|说明|說明|确认|確認|指定|输入|选择|补充)",
    declines="我[^,]{0,8}(?:无法|無法|不能|不可以|没法|无权|没有(?:权限|能力|访问|可用|相关|相应|这个|该)|沒有權限)|"
    "(?:抱歉|对不起|對不起|遗憾|不好意思).{0,40}(?:无法|無法|不能|不支持|没有|沒有|不可|不允许)",
    reports="(?:已经|已經|已)(?:为您|為您|成功|帮您)?.{0,6}(?:取消|预订|更新|提交|删除|创建|发送|完成|修改|添加|退款|设置)",
)
KOREAN = Language(
    "[\uac00-\ud7a3]",
    courtesy="도와드릴까|무엇을 도와|더 필요",
    asks="(?:알려|말씀해|제공해|입력해|확인해) ?주(?:세요|시겠|십시오|실)|(?:습니까|나요|인가요|까요) $",
    declines="(?:죄송|미안|유감|아쉽).{0,80}(?:수 없|못 ?합니다|불가능|않습니다|없습니다)|"
    "(?:저는|제가|저희).{0,60}(?:수 없|못 ?합니다|권한이 없)",
    reports="(?:했습니다|되었습니다|완료)",
)
LATIN: Sequence[Language] = (SPANISH, PORTUGUESE, ITALIAN, FRENCH, GERMAN)
SCRIPTS: Sequence[Language] = (JAPANESE, KOREAN, CHINESE, RUSSIAN)
"""Japanese before Chinese, whose characters it uses too."""

_SCRIPT = re.compile("[\u0400-\u04ff\u3040-\u30ff\u4e00-\u9fff\uac00-\ud7a3]")
"""Any of them, since most texts have none."""
_ENGLISH = frozenset(
    ["the", "you", "your", "is", "are", "i'm", "i'll", "can't", "of", "what", "which", "would"]
)


def languages(text: str, words: Sequence[str]) -> Sequence[Language]:
    """The language of a plain text with these words, several where it is too short to tell.

    None for English and for languages without cues.
    """
    if not text.isascii() and _SCRIPT.search(text):
        return [next(each for each in SCRIPTS if each.script is not None and each.script.search(text))]
    if not _ENGLISH.isdisjoint(words):
        return ()
    known = [len(candidate.words.intersection(words)) for candidate in LATIN]
    most = max(known)
    return [candidate for candidate, count in zip(LATIN, known, strict=True) if count == most > 0]
