"""What runs on a GPU, measured beside the CPU that feeds it."""
