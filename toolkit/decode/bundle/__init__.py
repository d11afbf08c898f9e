"""Bundles: all that recognition needs in one folder, and recognisers made from them."""
