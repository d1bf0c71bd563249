"""Draw random rules from the whole language, and run every lowering against the evaluator."""
