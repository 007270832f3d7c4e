"""Questions to the database of a shop: two tables in DuckDB's memory, drawn from the shop's number.

The truth of a question is what its SQL returns. After the form of text-to-SQL tasks (Spider: Yu et al. 2018,
arXiv:1809.08887), with two tables and six kinds of questions.
"""

import json
import random
from collections.abc import Iterator
from functools import cache

from ouroboros.operators.worlds.rows import Game, call, games
from ouroboros.pipeline.settings.arguments.worlds import Shop as Arguments
from ouroboros.pipeline.store import sessions
from ouroboros.pipeline.store.records import RawTask

DEFAULTS = Arguments.model_construct()
NAMES = ("Ann", "Ben", "Cem", "Dan", "Eva", "Fay", "Gus", "Hal", "Ida", "Jim", "Kay", "Leo", "Mia", "Ned", "Ola", "Pam")
CITIES = ("Bonn", "Lima", "Oslo", "Rome")
ITEMS = ("bed", "cup", "fan", "hat", "jar", "lamp", "mug", "pan", "rug", "sofa")
CUSTOMERS, ORDERS = 8, 20  # rows of the tables
SCHEMA = "customers(name, city), orders(customer, item, pieces, price)"
JOINED = "FROM orders JOIN customers ON customer = name"
QUESTIONS = (  # question, SQL, both with the column of `customers JOIN orders` that fills them
    ("How many orders has {}?", "SELECT count(*) FROM orders WHERE customer = '{}'", "name"),
    ("How much did {} pay?", "SELECT sum(pieces * price) FROM orders WHERE customer = '{}'", "name"),
    ("Where does {} live?", "SELECT city FROM customers WHERE name = '{}'", "name"),
    ("How many customers live in {}?", "SELECT count(*) FROM customers WHERE city = '{}'", "city"),
    ("How many pieces were sold to {}?", f"SELECT sum(pieces) {JOINED} WHERE city = '{{}}'", "city"),
    ("How many pieces of {} were sold?", "SELECT sum(pieces) FROM orders WHERE item = '{}'", "item"),
)


def connect(number: int):
    """A connection to the database of a shop, in memory, with one thread so that answers do not depend on time."""
    source = random.Random(f"shop {number}")
    customers = [(name, source.choice(CITIES)) for name in sorted(source.sample(NAMES, CUSTOMERS))]
    orders = [(source.choice(customers)[0], source.choice(ITEMS), source.randint(1, 9), source.randint(1, 99))
              for _ in range(ORDERS)]
    connection = sessions.new(1)
    for table, rows in {"customers(name, city)": customers, "orders(customer, item, pieces, price)": orders}.items():
        connection.execute(f"CREATE TABLE {table} AS VALUES {', '.join(map(str, rows))}")  # our own words and numbers
    return connection


def as_lines(columns: list[str], rows: list[tuple]) -> str:
    """A result as lines: the columns, then the rows."""
    return "\n".join(", ".join("NULL" if value is None else str(value) for value in row) for row in [columns, *rows])


def shop(seed: int, tasks: int, demonstrations: int, shops=DEFAULTS.shops, guesses=DEFAULTS.guesses
         ) -> Iterator[RawTask]:
    """Questions, and demonstrations that ask the database once; a share `guesses` of them answers without asking.

    A question names its shop, so that a split by questions keeps pairs of shop and question apart. The truth is
    `{"shop": number of the database, "value": answer}`.
    """
    opened = cache(connect)

    def draw(source: random.Random) -> Game:
        number = seed * 1000 + source.randrange(shops)
        asked, sql, column = source.choice(QUESTIONS)
        values = opened(number).execute(f"SELECT DISTINCT {column} {JOINED} ORDER BY ALL").fetchall()
        fills = source.choice(values)[0]
        done = opened(number).execute(sql.format(fills))
        columns, rows = [one[0] for one in done.description], done.fetchall()
        value = str(rows[0][0])
        if source.random() < guesses:
            turns = [(call("submit", answer=str(source.randint(1, 99))), "submitted")]
        else:
            turns = [(call("query", sql=sql.format(fills)), as_lines(columns, rows)),
                     (call("submit", answer=value), "submitted")]
        question, truth = f"Shop {number}: {asked.format(fills)}", {"shop": number, "value": value}
        return Game(question, json.dumps(truth), turns, SCHEMA)

    return games("shop", seed, tasks, demonstrations, draw)
