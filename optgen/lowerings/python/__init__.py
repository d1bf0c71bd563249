"""Print the Python that forloop and foreach share: scalars, signatures, phases, torch calls."""
