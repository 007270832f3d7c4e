"""`ouro serve`: the endpoint standalone, on any model directory, and the record of what it answered."""
