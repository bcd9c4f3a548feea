"""Sounds as pictures: the log-mel spectrogram of a recording, as a net for photos can see it."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy.io import wavfile
from scipy.signal import stft

SIZE, EDGE = 224, 16
"""Pixels of a spectrogram, and of the black frame around it: the net crops 256 x 256 to the middle 224."""
_BANDS = 96
_WINDOW, _STEP = 0.025, 0.010  # seconds
_RANGE = 80.0  # decibels from black to white


def spectrogram(path: Path) -> NDArray[np.uint8]:
    """256 x 256, low tones below, time to the right, stretched to the whole width; white is the loudest."""
    rate, sound = wavfile.read(path)
    window, step = round(_WINDOW * rate), round(_STEP * rate)
    sound = np.pad(sound.astype(np.float64), (0, max(0, window - len(sound))))
    waves = stft(sound, rate, nperseg=window, noverlap=window - step, nfft=_fft_size(window))[2]
    power = mel_filters(rate, _fft_size(window)) @ np.abs(waves) ** 2
    decibels = 10 * np.log10(np.maximum(power, 1e-10) / max(power.max(), 1e-10))
    grey = 255 * np.clip(1 + decibels / _RANGE, 0, 1)
    small = Image.fromarray(grey[::-1].astype(np.uint8)).resize((SIZE, SIZE), Image.Resampling.BILINEAR)
    return np.pad(np.asarray(small), EDGE)


def mel_filters(rate: int, size: int, bands: int = _BANDS) -> NDArray[np.float64]:
    """Triangles, equally wide in mel = 2595 log10(1 + Hz / 700): bands by frequencies of the transform."""
    highest = 2595 * np.log10(1 + rate / 2 / 700)
    corners = 700 * (10 ** (np.linspace(0, highest, bands + 2) / 2595) - 1)
    hertz = np.fft.rfftfreq(size, 1 / rate)
    low, middle, high = corners[:-2, None], corners[1:-1, None], corners[2:, None]
    return np.clip(np.minimum((hertz - low) / (middle - low), (high - hertz) / (high - middle)), 0, None)


def _fft_size(window: int) -> int:
    """Four times the window, to the next power of two: narrow low bands hold a frequency each."""
    return 1 << (4 * window - 1).bit_length()
