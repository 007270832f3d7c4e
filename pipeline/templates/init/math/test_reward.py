from reward import score


def test_the_right_number_is_solved():
    assert score("12", "12") == {"accuracy": 1.0, "near": 0.0}


def test_a_wrong_number_earns_less_the_further_away_it_is():
    assert score("10", "12") == {"accuracy": 0.0, "near": 0.05}
    assert score("2", "12") == {"accuracy": 0.0, "near": 0.01}


def test_no_number_earns_nothing():
    assert score("twelve", "12") == score("", "12") == {"accuracy": 0.0, "near": 0.0}
