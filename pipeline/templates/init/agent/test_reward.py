from reward import score


def test_the_number_is_solved():
    assert score("2", "2") == {"accuracy": 1.0}


def test_anything_else_is_not():
    assert score("3", "2") == score("two", "2") == score("", "2") == {"accuracy": 0.0}
