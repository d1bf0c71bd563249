"""Pickles of whole schedulers by versions that derived functions from the names of modes."""

import copy
import pickle

import pytest
import torch

import optgen.optim as optim
from optgen.optim.lr_scheduler import CyclicLR
from optgen.optim.swa_utils import SWALR

MAKERS = {
    "triangular2": lambda sgd: CyclicLR(sgd, 0.01, 0.1, step_size_up=3, mode="triangular2"),
    "exp_range": lambda sgd: CyclicLR(sgd, 0.01, 0.1, step_size_up=3, mode="exp_range", gamma=0.9),
    "swa_cos": lambda sgd: SWALR(sgd, 0.05, anneal_epochs=9),
    "swa_linear": lambda sgd: SWALR(sgd, 0.05, anneal_epochs=9, anneal_strategy="linear"),
}


@pytest.mark.parametrize("name", MAKERS)
def test_a_pickle_without_the_function_goes_on(name):
    sgd = optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1, momentum=0.9)
    scheduler = MAKERS[name](sgd)
    _rates(scheduler, 4)
    earlier = copy.deepcopy(scheduler)
    for key in ("_scale_fn_ref", "anneal_func"):
        vars(earlier).pop(key, None)
    loaded = pickle.loads(pickle.dumps(earlier))
    assert _rates(loaded, 8) == _rates(scheduler, 8)


def _rates(scheduler, steps):
    rates = []
    for _ in range(steps):
        scheduler.optimizer.step()
        scheduler.step()
        rates.append((scheduler.get_last_lr(), scheduler.optimizer.param_groups[0]["momentum"]))
    return rates
