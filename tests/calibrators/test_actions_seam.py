"""Our rules (`cues: seam`): texts written for these tests, one or more for each form that the rules know."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrators.actions import Action, text_action, text_labels
from calibrators.actions.english import question_kind, signals, singular, statement_kind
from calibrators.actions.english_rules import LEADING, QUESTION, QUESTIONS, STATEMENTS, Rule
from calibrators.actions.plain import END, plain, spaced

ASKS = [
    "To get started, could I have your account number?",
    "Sure! Which city would you like the weather for?",
    "I'd be happy to help. I'll just need the check-in and check-out dates.",
    "Can you tell me what size you need?",
    "Happy to help! What's your budget?",
    "Before I book that, I need a few more details: your full name, the date, and the departure city.",
    "Please let me know the date and time you'd like.",
    "Kindly provide your email address so I can look up the order.",
    "What type of cuisine are you in the mood for?",
    "I can help you with that! Could you share the tracking number?",
    "In order to proceed, the following information is required: the user ID and the API key.",
    "Are you looking for a one-way or round-trip ticket?",
    "Would you like the temperature in Celsius or Fahrenheit?",
    'I couldn\'t find a match for "Jon Smth". Did you mean John Smith?',
    "It seems the location is missing. Where are you traveling from?",
    "You haven't specified the language. Which one should I translate into?",
    "May I know the name of the restaurant?",
    "I noticed there are two accounts under your name. Which one should I use?",
    "Let me know your preferred seating and I'll reserve it.",
    "To find the best option, I would need to know how many guests there will be.",
    "Do you have any preference for the airline?",
    "And for how many nights?",
    "How long should the meeting be?",
    "Is this for personal or business use?",
    "Should I include weekends in the report?",
    "Great, and the expiry date of the card?",
    "Sorry, I didn't catch that. Could you repeat the serial number?",
    "I'm unable to proceed without the patient's date of birth. Please provide it.",
    "I can't locate that booking. Could you double-check the confirmation code?",
    "Just to clarify, do you want to delete the file permanently?",
    "Sure thing! Just tell me the name of the playlist.",
    "The request is missing a required parameter: the destination. Please specify it.",
    "I want to make sure I get this right. Do you mean the Paris in Texas?",
    "Got it. What is the exact address of the property?",
    "Could you clarify whether you need gluten-free options?",
    "I'd like to confirm: is your appointment on the 5th or the 6th?",
    "Which of the following would you prefer: economy, premium, or first class?",
    "Of course! Would you like to set a specific time for the reminder?",
    "For the best results, please specify the time zone.",
    "I need your permission to access the calendar. Do you agree?",
    "Certainly! To set the thermostat, what temperature would you like?",
    "What would you like the subject line of the email to be?",
    "Absolutely! Is there a particular genre you're interested in?",
    "Alright, do you also want trip insurance included?",
    "I'll need some more information from you. Specifically, your date of birth.",
    "To complete the transfer, please confirm the amount and the recipient.",
    "If you could provide the ZIP code, I can look up the nearest store.",
    "Please share the location where you'd like to be picked up.",
    "Who should I send the invitation to?",
    "Your request needs a start date. When should the subscription begin?",
    "I understand you want to rent a car. From which location will you be picking it up?",
    "Thanks! One more thing - what's the best phone number to reach you at?",
    "Do you prefer morning or afternoon?",
    "To search for flights, I require the departure airport.",
    "I have a few questions before I proceed. What is the purpose of the loan?",
    "Please give me the name of the artist.",
    "Would you mind telling me which version you're running?",
    "What's the zip code?",
    "Sure. What is the check-in date? This will help me find the best rates.",
    "Great! What is the model of the printer? I need it to look up the driver.",
    "I see that you want to convert some currency. From which currency?",
    "To schedule the appointment, which doctor would you prefer to see?",
    "Thanks for reaching out! Before we continue, are you an existing customer?",
    "I'll be glad to assist. Please choose one of the following sizes: small, medium, large.",
    "You mentioned two cities. Did you want the forecast for both?",
    'Could you elaborate on what you mean by "fast"?',
    "I'd be happy to order that for you. How spicy would you like it?",
    "I need more information to answer. Which year are you referring to?",
    "It would be helpful to know your dietary restrictions.",
    "Please specify whether the trip is one-way or round-trip.",
    "Kindly confirm your phone number for verification.",
    "Certainly! Would you like to add any toppings to your pizza?",
    "Do you want the results sorted by price?",
    "Should the report cover the whole year?",
    "I found three contacts named Anna. Which one do you mean?",
    "The booking requires a passenger name. Whose name should I put down?",
    "I can set that up. At what time should the lights turn on?",
    "I'm missing the amount to transfer. How much should I send?",
    "Hello! To check your balance, I need you to verify your identity first.",
    "Is the delivery address the same as last time?",
    "Any preference on the departure time?",
    "What's your location?",
    "To help you better, please tell me more about the issue.",
    "I can't book the ride without knowing your pickup point.",
    "Is it okay if the hotel is outside the city centre?",
]
"""Ask the user for what the request needs."""

REFUSES = [
    "I'm sorry, but I don't have access to real-time flight data.",
    "Unfortunately, I am not able to make purchases on your behalf.",
    "As an AI language model, I can't browse the internet.",
    "I don't have the necessary tools to complete this request.",
    "None of the available functions can be used to answer this question.",
    "The tools provided do not support sending emails.",
    "It appears that I don't have a function for that.",
    "I apologize, but booking hotels is beyond my current capabilities.",
    "This task falls outside the scope of what I can do.",
    "I'm afraid that's not something I can help with.",
    "I'm not equipped to handle payments.",
    "Sorry, I can't do that.",
    "Unfortunately, none of my tools allow me to check your bank balance.",
    "I do not have the capability to set reminders.",
    "There is no tool available to cancel a subscription.",
    "I currently lack the ability to access your calendar.",
    "I'm only able to assist with questions about the weather.",
    "My apologies, but I cannot process refunds. Please contact customer support.",
    "Regrettably, that functionality is not available to me.",
    "I won't be able to help you with hacking into an account.",
    "I must decline this request as it may cause harm.",
    "I'm sorry, but the functions I have access to do not include stock trading.",
    "Unfortunately, I'm not authorized to share that information.",
    "I can't help with that. Is there anything else I can do for you?",
    "I'm unable to order food for you. However, you can use a delivery app such as DoorDash.",
    "That isn't possible with the tools I have.",
    "I'm sorry, I have no way of accessing your device's location.",
    "No function available for this request.",
    "We're sorry, but we can't accept returns after 30 days.",
    "I apologize for any confusion, but as a text-based AI, I do not have the ability to play music.",
    "I'm sorry for the inconvenience, but I don't have the functionality to track packages.",
    "Apologies, but I'm not able to retrieve personal data.",
    "My capabilities don't include image generation.",
    "I'm sorry, but I'm just an AI assistant and can't make phone calls.",
    "Sorry, but that's outside my area of expertise.",
    "I'm sorry, but none of the provided functions finds lyrics. If you have them, I can analyze them.",
    "Unable to complete the request: no matching function.",
    "I don't currently have access to your account information.",
    "Unfortunately, I do not possess the ability to make reservations.",
    "I cannot fulfill this request.",
    "I'm designed to provide information and cannot execute trades.",
    "I can't assist with that, but I can suggest some alternatives. Would you like me to do that?",
    "Per our policy, basic economy tickets cannot be changed, so I'm unable to modify it.",
    "Unfortunately, your ticket can't be refunded because it's past the 24-hour window.",
    "It looks like this request can't be completed with the available tools.",
    "I'm sorry, but there isn't a function that lets me do that.",
    "I don't have information about that person.",
    "I'm sorry, I do not have real-time capabilities.",
    "I am not capable of physically delivering items.",
    "That action is not supported.",
    "I'm sorry, but I can't provide medical advice. Please consult a doctor.",
    "I am not permitted to disclose internal data.",
    "The requested operation isn't available in my toolset.",
    "I'm sorry, but I am unable to fulfil this request as the required tool is missing.",
    "I don't have any tools for booking a taxi.",
    "Sadly, I have no access to live sports scores.",
    "I'd love to help, but I can't place orders.",
    "I wish I could help, but I'm not able to access your files.",
    "At the moment I can't check live traffic.",
    "My training does not allow me to provide that.",
    "I'm sorry, but real-time translations aren't something I can offer.",
    "Sorry, that's not possible.",
    "I regret to inform you that I cannot access that file.",
    "I'm afraid I can't do that, Dave.",
    "Unfortunately I'm not able to help with this request at this time.",
    "I don't think I can help with that, since none of the functions provided are suited to it.",
    "That's beyond what I can do here.",
    "The given functions are not sufficient to answer the question.",
    "None of the functions can be used.",
    "The question cannot be answered using the available functions.",
    "There's no way for me to check your mail.",
    "I'm not in a position to give legal advice.",
    "I do not have a tool for translating documents.",
    "As a language model, I have no access to the internet.",
    "It's not within my capabilities to send text messages.",
    "My tools only cover weather and news.",
    "I am an AI and do not have the ability to eat or drink.",
    "I apologize for the inconvenience, but currently I am unable to fetch live data.",
    "I can’t share that information for privacy reasons.",
    "I won't help with that.",
    "I'm sorry, I can't do this. You can try the airline's website instead.",
    "We don't have access to your payment details.",
    "This request is outside of my scope.",
    "I don't support that kind of request.",
    "Unfortunately, the tools available to me don't let me edit photos.",
    "I have to refuse this request.",
    "I'm only a text-based assistant, so I can't see images.",
    "No suitable tool is available.",
    "I am unable to find a function that would do this.",
]
"""The assistant, or its tools, can't or may not."""

LEAVES = [
    "The capital of Australia is Canberra.",
    "You can't take liquids over 100 ml on board, so pack them in your checked luggage.",
    "Here are three options: A, B and C. Let me know if you'd like more details!",
    "I've booked your table for 7 PM. Is there anything else I can help you with?",
    "The museum is not open on Mondays, but you can visit it on Tuesday.",
    "To reset your password, go to Settings, click Security and enter your new password.",
    "I found two flights, one at 9:00 and one at 11:30. Would you like me to book one of them?",
    "Photosynthesis is how plants make food. Why is it important? It makes the oxygen we breathe.",
    "Your flight to Denver is confirmed. Please check in online 24 hours before departure.",
    "Unfortunately, there are no direct flights on that day. The earliest connection leaves at 10:15.",
    "I couldn't find any restaurants matching your criteria in that area.",
    "The product isn't available in blue, but we have it in green.",
    "Sure, I've set an alarm for 7 AM. Please note that the alarm won't ring if your phone is off.",
    'I recommend "Why Can\'t We Be Friends?" by War.',
    "The total cost is $45. You will need to provide your ID at the counter.",
    "You may need to contact your bank to confirm the transaction.",
    "It's 72 degrees and sunny in San Diego. Enjoy your day!",
    "To cook rice, you need two cups of water. If you can't find a lid, use foil.",
    "The company was unable to meet its targets last quarter.",
    "The Eiffel Tower is 330 metres tall. Did you know it grows in summer?",
    "I can't recommend this restaurant enough! It's at 12 High Street.",
    "The meeting has been delayed until 3 PM.",
    "Looking for something fun? Try the escape room on 5th Street.",
    "I see two alarms: one at 7 and one at 8.",
    "You have no meetings scheduled for today.",
    "Your account doesn't have any pending transactions.",
    "The system clock displays the current time.",
    "The API returns a 404 when the resource is not found.",
    "For more information, please visit our website or contact support.",
    "If you have any questions, feel free to ask.",
    "Here's the code:\n```python\ndef f(x): return x if x else None  # what?\n```",
    "John doesn't have access to the shared drive; Mary does.",
    "No tool is required for this: the answer is 42.",
    "The weather in London will be rainy tomorrow, so don't forget your umbrella.",
    "The best time to visit Japan is spring. How does that sound?",
    "I've sent the email to Anna. She cannot reply until Monday because she is on leave.",
    "I've updated the file. It is not possible to undo this change.",
    "Yes, you can change your seat up to 24 hours before departure.",
    "The parking lot requires a permit. You can get one at the front desk.",
    "According to the schedule, the train departs at 8:15 from platform 4.",
    "Your order has been shipped and should arrive on Friday.",
    'Sure! The translation is "¿Dónde está la biblioteca?".',
    "The function cannot be called with negative numbers, since the logarithm is undefined there.",
    "Please make sure your passport is valid for at least six months.",
    "I would suggest the Hilton, close to the airport. Would you like to know more about it?",
    "Without a visa you won't be able to enter the country.",
    "Great choice! The Honda Civic gets 36 mpg on the highway. Need help with anything else?",
    "You should ask your doctor whether you need a booster.",
    "There are 5 unresolved tickets: login not possible, printer not supported, no access to the drive.",
    "It depends on what you need. A laptop is lighter, a desktop is faster.",
    "Your flight can't be earlier than 9:00, so take the 8:15 train.",
    "The tool cannot be used on wet surfaces.",
    "This medicine is not available without a prescription.",
    "There is no charge for children under five.",
    "The function returns None if no item is found.",
    "To find your Wi-Fi password, open Settings. If you can't see it, restart the router.",
    "The average price is $20. Prices may vary. Please check with the store.",
    "Your package is on its way. You don't need to do anything.",
    "He said he could not attend the meeting.",
    "Here are some tips: ask yourself what you need, set a budget, and compare offers.",
    "The store only accepts cash.",
    "You should not mix bleach and ammonia.",
    "A visa is required to enter the country.",
    "The recipe needs two eggs. If you don't have butter, use oil.",
    "There are no upcoming events in your calendar.",
    "I found no errors in the log.",
    "We don't serve alcohol before noon.",
    "Yes, the hotel allows pets. What's more, breakfast is free.",
    "Dogs are not allowed in the park.",
    "I'd recommend the blue one. Let me know how it goes!",
    "It looks like the concert is sold out, but there are tickets for Sunday.",
    "You can confirm the appointment by replying to the email.",
    "The best option would be the 10 AM train. Shall I look for return trains as well?",
    "Once your payment has been processed, you will get an email.",
    "The flight has been delayed by two hours.",
]
"""Answers: what they say of limits, and what they ask, is neither of the two."""

REPORTS = [
    "I've added milk to your list. Do you need anything else?",
    "The file has been moved to the archive. It can't be restored after 30 days.",
    "Done! The light in the kitchen is now turned off.",
    "Your reservation has been cancelled, with a refund. Is there anything else I can assist you with?",
]
"""Report completion."""

LANGUAGES = [
    (Action.REFUSE, "Lo siento, no puedo ayudarte con eso."),
    (Action.REFUSE, "Lamentablemente, no tengo acceso a esa información."),
    (Action.ASK, "¿Cuál es su número de pedido?"),
    (Action.ASK, "Por favor, indique la fecha de salida."),
    (Action.ASK, "Necesito saber la ciudad de destino."),
    (Action.OTHER, "Hola, ¿en qué puedo ayudarle?"),
    (Action.OTHER, "El clima en Madrid es soleado."),
    (Action.CONFIRM, "He cancelado su reserva."),
    (Action.REFUSE, "Desculpe, não posso acessar sua conta."),
    (Action.REFUSE, "Não consigo fazer isso."),
    (Action.ASK, "Qual é o seu nome completo?"),
    (Action.ASK, "Por favor, informe o número do pedido."),
    (Action.REFUSE, "Mi dispiace, non posso farlo."),
    (Action.REFUSE, "Purtroppo non ho accesso ai dati in tempo reale."),
    (Action.ASK, "Per quale data vuole prenotare?"),
    (Action.REFUSE, "Je suis désolé, je ne peux pas vous aider."),
    (Action.REFUSE, "Je n'ai pas accès à ces informations."),
    (Action.ASK, "Quelle est votre date de départ ?"),
    (Action.ASK, "Veuillez préciser la ville."),
    (Action.CONFIRM, "Votre commande a été annulée."),
    (Action.OTHER, "Comment puis-je vous aider ?"),
    (Action.OTHER, "Le train part à 9 heures."),
    (Action.REFUSE, "Es tut mir leid, ich kann das nicht tun."),
    (Action.REFUSE, "Leider habe ich keinen Zugriff auf Ihre Daten."),
    (Action.REFUSE, "Leider kann ich Ihnen dabei nicht helfen."),
    (Action.ASK, "Welche Größe möchten Sie?"),
    (Action.ASK, "Bitte nennen Sie mir Ihre Kundennummer."),
    (Action.OTHER, "Kann ich Ihnen sonst noch helfen?"),
    (Action.OTHER, "Der Laden ist von 9 bis 17 Uhr geöffnet."),
    (Action.CONFIRM, "Ich habe Ihre Bestellung storniert."),
    (Action.REFUSE, "К сожалению, я не могу это сделать."),
    (Action.ASK, "Укажите, пожалуйста, номер заказа."),
    (Action.ASK, "Какой у вас город?"),
    (Action.OTHER, "Чем я могу помочь?"),
    (Action.OTHER, "Погода в Москве солнечная."),
    (Action.REFUSE, "申し訳ありませんが、その操作はできません。"),
    (Action.ASK, "ご希望の日時を教えてください。"),
    (Action.OTHER, "東京の天気は晴れです。"),
    (Action.OTHER, "他に何かお手伝いできることはありますか？"),
    (Action.CONFIRM, "予約をキャンセルしました。"),
    (Action.REFUSE, "对不起，我没有权限执行该操作。"),
    (Action.REFUSE, "很抱歉，目前不支持此功能。"),
    (Action.ASK, "请提供您的订单号。"),
    (Action.ASK, "您想预订哪一天的航班？"),
    (Action.OTHER, "今天北京天气晴朗。"),
    (Action.OTHER, "请问还有什么可以帮您的吗？"),
    (Action.CONFIRM, "已为您取消订单。"),
    (Action.REFUSE, "죄송합니다. 저는 그 작업을 할 수 없습니다."),
    (Action.ASK, "주문 번호를 알려 주세요."),
    (Action.ASK, "어느 도시로 가시나요?"),
    (Action.OTHER, "서울의 날씨는 맑습니다."),
    (Action.CONFIRM, "예약이 취소되었습니다."),
]


@pytest.mark.parametrize("text", ASKS)
def test_a_request_for_information_asks(text: str) -> None:
    assert text_action(text) is Action.ASK


@pytest.mark.parametrize("text", REFUSES)
def test_an_assistant_that_says_it_cannot_refuses(text: str) -> None:
    assert text_action(text) is Action.REFUSE


@pytest.mark.parametrize("text", LEAVES)
def test_an_answer_is_left_alone(text: str) -> None:
    assert text_action(text) in (Action.OTHER, Action.CONFIRM)


@pytest.mark.parametrize("text", REPORTS)
def test_a_report_of_completion_confirms(text: str) -> None:
    assert text_action(text) is Action.CONFIRM


@pytest.mark.parametrize(("action", "text"), LANGUAGES)
def test_common_forms_of_other_languages_are_known(action: Action, text: str) -> None:
    assert text_action(text) is action


@pytest.mark.parametrize("rule", [pytest.param(rule, id=rule.example) for rule in (*QUESTIONS, *STATEMENTS)])
def test_the_example_of_a_rule_is_judged_by_it(rule: Rule) -> None:
    text = singular(spaced(plain(rule.example)))
    sentence, held = text.split(END)[0], signals(text.split(" "))[0]

    assert held & LEADING
    if held & QUESTION:
        assert question_kind(sentence, "") is rule.kind
    else:
        assert statement_kind(sentence, held) is rule.kind


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ("I can't find report.csv. Did you mean report_2024.csv?", {Action.ASK}),
        ("I can't do that. Anything else?", {Action.REFUSE}),
        ("I've cancelled order 88. Which one should I cancel next?", {Action.CONFIRM, Action.ASK}),
        ("I've cancelled order 88, but I can't refund it. I'm sorry.", {Action.REFUSE}),
        ("I've cancelled order 88. Sadly, I can't refund it.", {Action.CONFIRM, Action.REFUSE}),
        ("Hi! How can I help you today?", set()),
        ("It is noon.", set()),
        (" ", set()),
        ('{"name": "ship", "arguments": {"note": "Which one?"}}', {Action.TOOL_CALL}),
    ],
)
def test_labels_are_given_each_on_its_own(text: str, labels: set[Action]) -> None:
    assert text_labels(text) == labels


@pytest.mark.parametrize(
    "closing",
    ["Anything else?", "Is there anything else I can help you with?", "How else can I help?",
     "Would you like me to look for something similar?", "Do you have any other questions?",
     "Let me know if you need anything else.", "What else can I do for you?"],
)  # fmt: skip
def test_a_refusal_with_a_closing_stays_a_refusal(closing: str) -> None:
    assert [text for text in REFUSES if text_action(f"{text} {closing}") is not Action.REFUSE] == []


def test_a_refusal_that_asks_for_what_it_needs_asks() -> None:
    question = "Which account do you mean?"
    assert [text for text in REFUSES if text_action(f"{text} {question}") is not Action.ASK] == []


words = st.lists(
    st.sampled_from(
        [word for text in (*ASKS, *REFUSES, *LEAVES) for word in text.split()]
        + ["?", "\n", '"', "'", "`", "```", "|", "「", "¿", "(", "https://a.b/?c"]
    ),
    max_size=40,
).map(" ".join)


@given(words | st.text())
def test_no_text_is_too_odd_for_our_rules(text: str) -> None:
    assert text_action(text) in (*Action, None)
    assert Action.OTHER not in text_labels(text)


@given(words)
def test_the_class_is_one_of_the_labels(text: str) -> None:
    action, labels = text_action(text), text_labels(text)
    assert action in labels if action not in (Action.OTHER, None) else labels == set()


@given(words)
def test_typographic_and_straight_quotes_give_the_same_class(text: str) -> None:
    assert text_action(text.replace("'", "’").replace('"', "”")) is text_action(text)


@given(st.text(st.characters(blacklist_characters="`"), max_size=40))
def test_what_stands_in_code_asks_and_refuses_nothing(code: str) -> None:
    for shown in (f"```\n{code} Which one? I can't.\n```", f"`{' '.join(code.split())} which one? I can't.`"):
        assert text_action(f"This is the pattern:\n{shown}") in (Action.OTHER, Action.CONFIRM)


@given(st.text("abcxyz?&=/.%-", max_size=40))
def test_the_marks_of_a_link_ask_nothing(path: str) -> None:
    assert text_action(f"The chart is at https://files.example/{path}x and stays there.") is Action.OTHER


@pytest.mark.parametrize("opening", ['"', "“", "'", "‘", "「", "„", "«"])
def test_quoted_speech_is_not_the_assistants_own(opening: str) -> None:
    closing = {"“": "”", "‘": "’", "「": "」", "„": "“", "«": "»"}.get(opening, opening)
    quoted = f"The robot says {opening}I cannot open the gate, could you?{closing} and waits."
    assert text_action(quoted) is Action.OTHER


def test_a_reply_that_is_one_quotation_speaks_for_itself() -> None:
    assert text_action("\"I'm sorry, I can't do that.\"") is Action.REFUSE


def test_a_letter_drafted_for_somebody_asks_nothing_of_the_user() -> None:
    letter = "Here is a draft:\n\nDear Ms Lind,\n\ncould you please send me the report?\n\nBest, Ada"
    assert text_action(letter) is Action.OTHER


@pytest.mark.parametrize(
    ("heading", "action"),
    [
        ("What is a mutex? It is a lock that one thread holds at a time.", Action.OTHER),
        ("What is the departure date? It will help me find the fares.", Action.ASK),
        ("What is the departure date? And what is the budget?", Action.ASK),
        ("The fares are below. What is the departure date?", Action.ASK),
    ],
)
def test_a_question_that_the_assistant_answers_itself_is_a_heading(heading: str, action: Action) -> None:
    assert text_action(heading) is action


@pytest.mark.parametrize("text", ["?", "All of it is below.\n?", "It reads:\n```sql\nWHERE a = ?\n```?"])
def test_a_question_mark_without_words_asks_nothing(text: str) -> None:
    assert text_action(text) is Action.OTHER
