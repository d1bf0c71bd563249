# lowering: 'forloop'
# kind: 'crashed'
# message: "NameError: name 'key_q' is not defined (unfused.py)"
# hypers: {}
# shapes: ((3,), (2, 3))
# dtype: 'float64'
# seed: 200
from optgen.spec import *

@optimizer(paper='https://example.org')
def Random(p, g, /, s=state('key_s', shape='scalar'), q=state('key_q', init=1.5, shape='scalar')):
    """Both states get the same value of the second one's old value."""
    s = q / (abs(q) + 1)
    s, q = -s, q / (abs(q) + 1)
    p = p - g * s
