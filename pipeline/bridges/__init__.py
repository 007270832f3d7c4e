"""Bridges: configurations of Trinity-RFT and launch scripts of veRL, translated to recipes of ours."""
