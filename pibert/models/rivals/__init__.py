"""Modern models of PIBERT's size, to see whether its parts are what helps."""
