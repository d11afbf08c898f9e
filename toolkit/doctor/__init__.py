"""`toolkit doctor`: tests the machine and the installed packages."""
