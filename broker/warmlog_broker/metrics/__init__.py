"""What operators and their tools see of a broker over HTTP."""
