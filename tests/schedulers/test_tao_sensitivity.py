"""Every variant of the sensitivity study is a setting that TAO accepts, and changes something."""

from __future__ import annotations

import yaml

from schedulers.registry import create
from schedulers.tao_config import TaoConfig
from scripts.tao_sensitivity import CHOICES


def test_variants_are_valid_and_differ_from_the_defaults() -> None:
    assert len(CHOICES) == 7  # the defaults and the six open choices
    for choice, variants in CHOICES.items():
        for variant in variants:
            settings = {
                name: yaml.safe_load(value)
                for name, _, value in (one.partition("=") for one in variant.split())
            }
            same = create("tao", settings).config == TaoConfig()
            assert same is (choice == "defaults")
