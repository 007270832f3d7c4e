from reward import score


def test_only_the_preferred_reply_counts():
    assert score("Hello Ann!", "Hello Ann!") == {"accuracy": 1.0}
    assert score("hello ann!", "Hello Ann!") == score("", "Hello Ann!") == {"accuracy": 0.0}
