"""Import once the modules that processes with Triton's interpreter need.

A fork server imports this module, and the processes are forked from the server.
The interpreter imports Gluon at its first launch, and rewrites each function at its first call; the
server does the rewriting. It freezes all objects, so that no garbage collection searches them.
"""

import gc
import importlib
import pkgutil

import fast_interpreter
import torch._dynamo  # noqa: F401 (torch's optimizers import it, in a second)
from triton.language import standard
from triton.runtime.interpreter import InterpretedFunction

import optgen.optim
import optgen.runtime.fused_triton

fast_interpreter.install()
_PACKAGE = optgen.runtime.fused_triton
_MODULES = [
    importlib.import_module(f"{_PACKAGE.__name__}.{module.name}")
    for module in pkgutil.iter_modules(_PACKAGE.__path__)
]
for _module in [standard, *_MODULES]:
    for _function in [*vars(_module).values()]:
        if isinstance(_function, InterpretedFunction):
            _function.rewrite()
gc.collect()
gc.freeze()
