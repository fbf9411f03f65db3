# Choose how a node finds `dataprep`: remove the # from one of the three lines. Run sbatch in the project's folder, because
# run.sbatch reads this file relative to the current folder.

# --- a virtual environment on the shared disk. Create it once: python3 -m venv .venv && .venv/bin/pip install dataprep-assets
#DATAPREP=$PWD/.venv/bin/dataprep

# --- modules: Python from the cluster, and packages from a virtual environment that uses it
#module purge && module load python/3.11 && . "$PWD/.venv/bin/activate"

# --- a container with the packages; the project is on the shared disk: apptainer build dataprep.sif docker-daemon://IMAGE:1
#DATAPREP="apptainer exec --bind $PWD dataprep.sif dataprep"

# Artifacts must be in a folder that every node mounts. For a bucket, set DATAPREP_STORAGE, DATAPREP_BUCKET and its keys.
#export DATAPREP_ROOT=$PWD/.dataprep/artifacts
# local copies of a bucket's files, on the node's own disk
#export DATAPREP_CACHE=${TMPDIR:-/tmp}/dataprep-cache
