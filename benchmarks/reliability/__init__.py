"""How the package behaves at the ends of what it accepts."""
