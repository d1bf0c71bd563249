import pytest

from optgen.runtime.rule import Rule, State, truth


@pytest.mark.parametrize(
    ("when", "group", "present"),
    [
        (None, {}, True),
        ("amsgrad", {"amsgrad": True}, True),
        ("amsgrad", {"amsgrad": False}, False),
        ("momentum", {"momentum": 0.9}, True),
        ("momentum", {"momentum": 0}, False),
        ("momentum", {"momentum": None}, False),
        ("not factored", {"factored": False}, True),
        ("not factored", {"factored": True}, False),
    ],
)
def test_a_state_is_present_when_its_condition_is_true(when, group, present):
    assert State("s", when=when).present(group) is present


def test_a_tensor_hyperparameter_is_true_without_being_read():
    class Unreadable:
        def __bool__(self):
            raise AssertionError("read")

    assert truth(Unreadable())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: State("step"), "may not be called 'step'"),
        (lambda: State("s", shape="cube"), "unknown shape 'cube'"),
        (lambda: Rule("r", (State("s"), State("s")), ()), "two states have one key"),
        (lambda: Rule("r", (State("s"),), (), fresh=("b",)), "no state 'b'"),
        (lambda: Rule("r", (), (), gradient="odd"), "unknown gradient kind 'odd'"),
        (lambda: Rule("r", (), (), step="float"), "unknown kind of step 'float'"),
    ],
)
def test_a_rule_that_contradicts_itself_cannot_be_made(make, message):
    with pytest.raises(ValueError, match=message):
        make()
