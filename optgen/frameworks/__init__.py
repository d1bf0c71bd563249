"""Adapters that let configuration files of other frameworks name optimizers of optgen.

Each module is named after its framework, and is imported only by whoever uses that framework:
`import optgen` imports none of them.
"""
