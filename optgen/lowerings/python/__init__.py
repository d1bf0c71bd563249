"""What the for-loop and foreach share: Python text of scalars, signatures and torch calls."""
