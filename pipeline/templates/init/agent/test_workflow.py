from workflow import hint


def test_a_hint_says_how_far_and_in_which_direction():
    assert hint("2", "4") == "2 too low"
    assert hint("5", "1") == "4 too high"


def test_a_guess_that_is_no_number_gets_a_hint_too():
    assert hint("?", "3") == "a number from 1 to 5"
