"""Acoustic models: LSTM, BLSTM, convolution + LSTM."""
