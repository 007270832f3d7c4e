from workflow import hint


def test_a_hint_says_in_which_direction():
    assert hint("1", "3") == hint("1", "2") == "higher"
    assert hint("3", "2") == "lower"


def test_a_guess_outside_the_game_gets_a_hint_too():
    assert hint("4", "2") == hint("?", "2") == "1, 2 or 3"
