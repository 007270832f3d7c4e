from reward import score


def test_the_number_is_solved():
    assert score("7", "7") == {"accuracy": 1.0}


def test_anything_else_is_not():
    assert score("6", "7") == score("seven", "7") == score("", "7") == {"accuracy": 0.0}
