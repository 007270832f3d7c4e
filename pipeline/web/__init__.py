"""The page of `ouro view`: a local server that reads runs/ and store/, and its files for a browser."""
