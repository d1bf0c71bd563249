"""Rules drawn by lot from the whole language, run in every lowering against the evaluator."""
