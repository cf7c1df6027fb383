"""Check new predictions, labelled or not, for drift away from the calibration set.

Three tests check whether the differences are larger than chance: two for the confidences (Kolmogorov-Smirnov, and the
population stability index over deciles of the calibration set), and one for how often each class is predicted. The
accuracy on the new data is predicted from its confidences. If the new data has labels, accuracy and class frequencies
are computed from them. An alarm is raised if a difference is beyond chance and large enough to matter. A shift of the
class frequencies is a separate alarm, which reports the new frequencies; --out then saves a calibrator that corrects
for the shift.

Exit code 0: no alarm. 1: alarm. 2: a file or a name was not found.

Examples:
  acls drift calibration.npz monday.npz
  acls drift val.parquet 'logs/2025-06-*.parquet' --probs p --json
  acls drift val.npz new.npz --alpha 0.001 --psi 0.25
  acls drift val.npz new.npz --out shift.safetensors
  acls apply shift.safetensors new.npz corrected.npz

"""

import argparse

from acls.cli.common import FILES, add_columns, add_shared, batches_of, check_out, say
from acls.options import leaves, number
from acls.watch import Limits


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``acls drift``."""
    parser.add_argument("calibration", metavar="CALIBRATION_FILE", help=f"labelled predictions of the model: {FILES}")
    parser.add_argument(
        "new", metavar="NEW_FILE", help="predictions on new data, under the same names; labels are optional"
    )
    for name, leaf in leaves(Limits).items():
        kind, default = number(float, leaf.within), getattr(Limits, name)
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, default=default, metavar="X", help=leaf.help)
    parser.add_argument("--out", metavar="FILE", help="save a calibrator that corrects for the new class frequencies")
    force = "overwrite files that acls did not write, and save the calibrator even without an alarm for label shift"
    add_shared(parser, "json", "quiet", force=force)
    add_columns(parser)


def run(args: argparse.Namespace) -> int:
    """Print the result of the check; return 1 for an alarm."""
    check_out(args, args.out, "calibrator", args.calibration, args.new)
    from acls.watch.drift import compare

    limits = Limits(**{name: getattr(args, name) for name in leaves(Limits)})
    known, new = batches_of(args, args.calibration), batches_of(args, args.new, unlabelled=True)
    found = compare(known, new, limits, ignore_index=args.ignore_index)
    say(args, found if args.out is None else found.save(args.out, force=args.force))
    return int(found.alarm)
