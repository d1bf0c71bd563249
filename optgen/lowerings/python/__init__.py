"""Print the Python that forloop and foreach share: functions, scalars, phases, torch calls."""
