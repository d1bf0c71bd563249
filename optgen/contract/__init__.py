"""Facts that both the compiler and the runtime know: one writes code for them, one runs it."""
