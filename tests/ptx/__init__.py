"""An interpreter of PTX: it runs what Triton compiled for sm_90 on host memory, and checks it.

`program` reads the text, `table` has the instructions, `launch` runs a grid, `emulate` lets steps
of an optimizer run this way. `accesses` and `block_order` search for accesses that nothing orders.
"""
