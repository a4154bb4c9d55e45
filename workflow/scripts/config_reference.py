"""Write docs/config.md, the reference of the config, from the schema."""

import argparse
from pathlib import Path

from _command import run
from resnet_mechanisms import config_reference


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/config.md"))
    parser.parse_args().out.write_text(config_reference.text(), encoding="utf-8")


if __name__ == "__main__":
    run(main)
