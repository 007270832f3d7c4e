"""Translates configurations of Trinity-RFT and launch scripts of veRL to our recipes."""
