"""`python -m fl`, and the console command `sparsefl`."""

from fl.cli.app import app


def main() -> None:
    app(prog_name="sparsefl")


if __name__ == "__main__":
    main()
