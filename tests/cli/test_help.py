"""The help of an option names all that it takes: what is added to a registry must be added there."""

import pytest
import typer

from spaceform.calibrators import CALIBRATORS
from spaceform.cli.app import app
from spaceform.data.formats import FILE_FORMATS
from spaceform.nets import NETS

TRAINED_ON = [ending for ending, known in FILE_FORMATS.items() if known.load is not None]
PREDICTED = [ending for ending, known in FILE_FORMATS.items() if known.inputs is not None]


@pytest.mark.parametrize(
    ("command", "parameter", "names"),
    [
        ("predict", "calibrator", CALIBRATORS),
        ("export", "calibrator", CALIBRATORS),
        ("compare", "net", NETS),
        ("search", "net", NETS),
        ("compare", "data", TRAINED_ON),
        ("search", "data", TRAINED_ON),
        ("data check", "what", TRAINED_ON),
        ("predict", "sources", PREDICTED),
        ("embed", "sources", PREDICTED),
    ],
)
def test_the_help_names_all(command, parameter, names):
    found = typer.main.get_command(app)
    for word in command.split():
        found = found.commands[word]
    (said,) = (one.help for one in found.params if one.name == parameter)
    assert not [name for name in names if name not in said.replace(",", " ").rstrip(".").split()]
