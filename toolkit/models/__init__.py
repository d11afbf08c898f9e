"""Acoustic and language models: LSTM, BLSTM, TDNN-F, CTC network, word LSTM."""
