"""Places, the waiting line, draining, and times."""

import pytest

from strata.errors import NotReady, Overloaded, RequestError
from strata.server.admission import Admission


def test_places_are_given_back_whatever_happens():
    admission = Admission(1, 1)
    with admission.admit(2):
        assert admission.n_open == 2
        with pytest.raises(Overloaded, match="2 of 2 places are taken"), admission.admit(1):
            pass
    with pytest.raises(ZeroDivisionError), admission.admit(2):
        raise ZeroDivisionError
    assert admission.n_open == 0


def test_what_can_never_fit_is_not_told_to_come_back():
    admission = Admission(2, 1)
    with admission.admit(1), pytest.raises(RequestError, match="needs 4 sequences; this server takes up to 3"):
        admission.admit(4).__enter__()
    assert admission.n_open == 0


def test_draining_refuses_and_tells_when_the_last_one_left():
    told = []
    admission = Admission(4, 0)
    with admission.admit(1):
        with admission.admit(2):
            admission.drain(lambda: told.append(admission.n_open))
            with pytest.raises(NotReady), admission.admit(1):
                pass
        assert told == []
    assert told == [0]


def test_draining_when_nothing_is_open_tells_at_once():
    told = []
    Admission(4, 0).drain(lambda: told.append(True))
    assert told == [True]


def test_time_to_come_back_follows_the_stays_within_bounds():
    admission = Admission(2, 0)
    assert admission.retry_after_s() == 1.0
    for _ in range(100):
        admission.note_stay(20.0)
    assert admission.retry_after_s() == pytest.approx(10.0, rel=0.01)
    for _ in range(100):
        admission.note_stay(1000.0)
    assert admission.retry_after_s() == 60.0


@pytest.mark.parametrize(
    ("ours", "wanted", "limit"),
    [(0, None, None), (5, None, 5), (5, 3, 3), (5, 8, 5), (0, 8, 8)],
)
def test_deadlines(ours, wanted, limit):
    assert Admission(1, 0, ours).deadline_s(wanted) == limit
