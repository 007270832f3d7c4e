"""The pages of `ouro view` and `ouro studio`: local servers over runs/, store/ and recipes, and files for a browser."""
