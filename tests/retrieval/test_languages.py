"""Tools with texts in any language are found by the words of a query."""

import pytest
from support.catalogs import snapshot, tool
from support.model_folders import write_export
from support.tables import each

from mcp_context_proxy.config import EmbeddingConfig
from mcp_context_proxy.embedding.embeddings import CachedEmbedder, LazyModel, QueryEmbedder, load_model
from mcp_context_proxy.retrieval.engine import Engine
from mcp_context_proxy.retrieval.forms import WORDS, WordList
from mcp_context_proxy.retrieval.queries import read_query
from mcp_context_proxy.retrieval.scoring import calibration_for
from mcp_context_proxy.retrieval.text import TRANSLATIONS
from mcp_context_proxy.store.opening import open_store

CATALOGS = {
    "German": {
        "wetter": "Gibt die Wettervorhersage für eine Stadt zurück.",
        "dateien": "Löscht eine Datei von der Festplatte.",
        "uebersetzung": "Übersetzt einen Text in eine andere Sprache.",
    },
    "Spanish": {
        "tiempo": "Obtiene el pronóstico del tiempo de una ciudad.",
        "archivos": "Borra archivos y carpetas del disco.",
        "traducir": "Traduce un texto a otro idioma.",
    },
    "Chinese": {
        "tianqi": "查询城市的天气预报。",
        "wenjian": "从磁盘上删除指定的文件。",
        "fanyi": "把文本翻译成另一种语言。",
    },
    "Japanese": {
        "tenki": "都市の天気予報を取得します。",
        "fairu": "ディスクからファイルを削除します。",
        "honyaku": "テキストを別の言語に翻訳します。",
    },
    "Korean": {
        "nalssi": "도시의 날씨 예보를 가져옵니다.",
        "pail": "디스크에서 파일을 삭제합니다.",
        "beonyeok": "텍스트를 다른 언어로 번역합니다.",
    },
    "Arabic": {
        "taqs": "يعرض توقعات الطقس لمدينة.",
        "milaff": "يحذف ملفًا من القرص.",
        "tarjama": "يترجم نصًا إلى لغة أخرى.",
    },
    "Russian": {
        "pogoda": "Показывает прогноз погоды для города.",
        "fail": "Удаляет файл с диска.",
        "perevod": "Переводит текст на другой язык.",
    },
    "Hindi": {
        "mausam": "शहर के मौसम का पूर्वानुमान बताता है।",
        "phail": "डिस्क से फ़ाइल हटाता है।",
        "anuvad": "पाठ का दूसरी भाषा में अनुवाद करता है।",
    },
}


@pytest.mark.parametrize(
    ("language", "query", "expected"),
    [
        ("German", "Wie wird die wettervorhersage in Köln?", "wetter"),
        ("German", "datei loschen, bitte: loscht sie", "dateien"),
        ("Spanish", "¿Cuál es el pronostico para mi ciudad?", "tiempo"),
        ("Spanish", "borrar un ARCHIVO del disco", "archivos"),
        ("Chinese", "明天北京的天气怎么样？", "tianqi"),
        ("Chinese", "我想删除一个文件", "wenjian"),
        ("Japanese", "東京の天気予報を教えて", "tenki"),
        ("Japanese", "この文を英語に翻訳して", "honyaku"),
        ("Japanese", "ﾌｧｲﾙを消したい", "fairu"),
        ("Korean", "서울 날씨 알려줘", "nalssi"),
        ("Arabic", "ما هو طقس الغد؟", "taqs"),
        ("Arabic", "احذف ملفا", "milaff"),
        ("Russian", "какой прогноз погоды на завтра", "pogoda"),
        ("Hindi", "आज का मौसम कैसा है", "mausam"),
    ],
)
def test_a_query_in_any_language_finds_the_tool_with_its_words(language, query, expected):
    tools = [tool(name, text, server="werkzeug") for name, text in CATALOGS[language].items()]

    ranking = Engine(None).search(query, snapshot(*tools))

    assert ranking.fits
    assert ranking.results[0].item.name == expected


def test_tools_in_several_languages_do_not_hide_one_another():
    tools = [
        tool(name, text, server=language.lower())
        for language, texts in CATALOGS.items()
        for name, text in texts.items()
    ]

    ranking = Engine(None).search("城市的天气预报", snapshot(*tools))

    assert ranking.results[0].item.name == "tianqi"


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("liste mir bitte alle pull requests auf", "list_pull_requests"),
        ("muéstrame los commits más recientes del repositorio", "list_commits"),
    ],
)
def test_a_name_in_a_query_of_another_language_is_enough_for_the_packaged_model(engine, query, expected):
    tools = [
        tool("list_pull_requests", "List the pull requests of a repository.", server="git"),
        tool("list_commits", "List the latest commits of a branch.", server="git"),
        tool("get_forecast", "Get the weather of the next days for a city.", server="weather"),
        tool("send_message", "Send a message to somebody in a channel.", server="chat"),
    ]
    ranking = engine.search(query, snapshot(*tools))

    assert ranking.fits
    assert ranking.results[0].item.name == expected


def test_a_model_of_several_languages_in_a_folder_finds_tools_by_meaning(tmp_path):
    folder = write_export(tmp_path, alike={"wetter": "weather"})
    settings = EmbeddingConfig(model=str(folder), query_prefix="query: ", passage_prefix="passage: ")
    tools = [
        tool("get_forecast", "weather of the next days"),
        tool("post", "send mail to somebody"),
        tool("report", "create issue here"),
    ]
    with open_store("memory") as store:
        model = LazyModel(lambda: load_model(folder, settings))
        engine = Engine(
            CachedEmbedder(model, store.vectors), QueryEmbedder(model), calibration=calibration_for(settings)
        )
        ranking = engine.search("wie wird das wetter", snapshot(*tools))

    assert ranking.fits
    assert ranking.results[0].item.name == "get_forecast"
    assert ranking.results[0].lexical == 0


def test_a_query_of_another_language_without_any_name_fits_nothing(engine):
    tools = [tool("list_pull_requests", "List the pull requests of a repository.", server="git")]

    assert not engine.search("wie wird das wetter morgen in der stadt", snapshot(*tools)).fits


EVERYDAY = {
    "create_branch": "Create a new branch in a repository.",
    "delete_rows": "Delete rows of a sheet.",
    "list_issues": "List the issues of a project.",
    "read_file": "Read a file as text.",
    "send_message": "Send a message to a channel.",
    "search_web": "Search the web for news and pages.",
    "get_current_time": "Get the current time in a time zone.",
    "get_forecast": "Get the weather of the next days for a city.",
    "create_invoice": "Create an invoice for a customer.",
    "respond_to_event": "Accept or decline an invitation to an event.",
    "complete_task": "Mark a task as done.",
    "list_leave_balances": "List how many days of leave each employee has left.",
    "get_share_price": "Get the price of a share on the stock exchange.",
}


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("crea una nueva rama llamada pruebas", "create_branch"),
        ("elimina la fila 4 de la hoja", "delete_rows"),
        ("lösch bitte die vierte Zeile", "delete_rows"),
        ("loesche die zeile 4", "delete_rows"),
        ("zeig mir alle offenen Tickets vom Projekt", "list_issues"),
        ("lis-moi le fichier notes.txt", "read_file"),
        ("leggi il file note.txt", "read_file"),
        ("stuur een bericht naar het kanaal", "send_message"),
        ("envoie un message dans le canal général", "send_message"),
        ("busca noticias en la web sobre energía", "search_web"),
        ("¿qué hora es en Tokio?", "get_current_time"),
        ("che tempo fa domani a Roma", "get_forecast"),
        ("crie uma fatura para o cliente", "create_invoice"),
        ("aceite o convite da Maria", "respond_to_event"),
        ("rifiuta l'invito di Giulia", "respond_to_event"),
        ("wie viele Urlaubstage hat Tom noch", "list_leave_balances"),
        ("marca la compra como hecha", "complete_task"),
        ("combien de congés reste-t-il à Julie", "list_leave_balances"),
        ("wat kost een aandeel van Philips", "get_share_price"),
    ],
)
def test_the_packaged_model_reads_common_words_of_some_languages(engine, query, expected):
    tools = [tool(name, text, server="office") for name, text in EVERYDAY.items()]
    ranking = engine.search(query, snapshot(*tools))

    assert ranking.fits
    assert expected in [result.item.name for result in ranking.results[:2]]


OFFICES = {
    "German": {
        "termin_anlegen": "Legt einen neuen Termin im Kalender an.",
        "rechnung_erstellen": "Erstellt eine Rechnung für einen Kunden.",
        "wetter_abrufen": "Ruft die Wettervorhersage für eine Stadt ab.",
        "datei_loeschen": "Löscht eine Datei in einem Ordner.",
    },
    "Spanish": {
        "nueva_reunion": "Crea una reunión en el calendario.",
        "crear_factura": "Crea una factura para un cliente.",
        "clima": "Obtiene el clima de una ciudad.",
        "borrar": "Elimina un archivo de una carpeta.",
    },
    "Chinese": {
        "a1": "在日历中创建新的日程。",
        "a2": "为客户开具发票。",
        "a3": "查询指定城市的天气预报。",
        "a4": "删除文件夹中的文件。",
    },
}
"""Tools for a meeting, an invoice, the weather and a file, in this order."""


@pytest.mark.parametrize(
    ("language", "query", "place"),
    [
        ("German", "create a meeting for tomorrow at 10", 0),
        ("German", "lege einen Termin für morgen um 10 an", 0),
        ("German", "create an invoice for Miller", 1),
        ("German", "schreibe eine Rechnung an Müller", 1),
        ("German", "what's the weather in Bonn", 2),
        ("German", "delete the file old.txt", 3),
        ("Spanish", "create an invoice for Miller", 1),
        ("Spanish", "what's the weather in Seville", 2),
        ("Spanish", "borra el archivo viejo", 3),
        ("Chinese", "明天北京的天气预报", 2),
        ("Chinese", "删除这个文件", 3),
    ],
)
def test_the_packaged_model_finds_tools_that_are_described_in_another_language(
    engine, language, query, place
):
    tools = [tool(name, text, server="buero") for name, text in OFFICES[language].items()]
    ranking = engine.search(query, snapshot(*tools))

    assert ranking.fits
    assert ranking.results[0].item.name == tools[place].name


def test_a_payload_of_another_language_makes_no_request_foreign():
    query = read_query(
        'send "crea una nueva rama" to the team', lambda _term: False, lambda: WordList([]), {}
    )

    assert query.read_as is None


@each(
    "query",
    [
        "find songs like Shape of You by Ed Sheeran",
        "show the photos that Vincent van Gogh has taken in Los Angeles",
        "mark the site on the red map as done",
        "book a table at Casa Nova",
        "compare price e and price y of company la",
        "oder a taxi for seven people",
    ],
)
def test_an_english_query_with_names_is_not_translated(query):
    assert read_query(query, lambda _term: True, lambda: WordList([]), {}).read_as is None


@each(
    ("query", "understood"),
    [
        ("mach das Licht aus", "turn off the light"),
        ("Bitte fahr den Server hoch.", "please start the Server."),
        (
            "trage den Termin im Kalender ein und lade Anna ein",
            "enter the meeting in calendar and invite Anna",
        ),
        ("stell die Datenbank wieder her", "restore the database"),
        ("zet de muziek uit", "turn off of music"),
        ("wirf die Datei raus", "remove the file"),
        ("mach das Licht an der Kamera aus", "turn off the light an the camera"),
    ],
)
def test_a_verb_is_read_together_with_its_particle_at_the_end(query, understood):
    assert read_query(query, lambda _term: False, lambda: WordList([]), {}).read_as == understood


@each(
    "query",
    [
        "Suche die Rechnung, danach lösche die Datei",
        "cherche la facture puis supprime le fichier",
        "busca la factura y después borra el archivo",
        "cerca la fattura e in seguito cancella il file",
        "procure a fatura, em seguida exclua o arquivo",
        "zoek de factuur, vervolgens verwijder het bestand",
    ],
)
def test_the_second_of_two_orders_in_another_language_is_a_need_of_its_own(query):
    needs = read_query(query, lambda _term: False, lambda: WordList([]), {}).texts[1:]
    assert len(needs) == 2
    assert needs[1].startswith("delete")


@each(
    "query",
    [
        "type it in",
        "what should I put the label on",
        "turn the light on",
        "start the next and say what is open",
    ],
)
def test_an_english_verb_has_no_such_particle(query):
    assert read_query(query, lambda _term: True, lambda: WordList([]), {}).read_as is None


def test_words_that_are_telling_of_another_language_are_hardly_english():
    frequent = set(WORDS.read_text(encoding="ascii").split())

    lines = [line for line in TRANSLATIONS.read_text(encoding="utf-8").splitlines() if line[:1] != "#"]
    assert lines
    for line in lines:
        telling = line.partition(":")[2].partition("/")[0].split()
        assert frequent.isdisjoint(telling), line


def test_each_word_of_another_language_is_translated_in_one_way():
    lines = TRANSLATIONS.read_text(encoding="utf-8").splitlines()
    listed = [
        word
        for line in lines
        if not line.startswith("#")
        for word in line.partition(":")[2].replace("/", " ").split()
    ]

    assert len(listed) > 4_000
    assert sorted(listed) == sorted(set(listed))
