"Packaging: every value lives in settings.ini, this only hands it to setuptools."
import shlex
from configparser import ConfigParser
from pathlib import Path

from setuptools import find_packages, setup

cfg = ConfigParser(delimiters=['='])
cfg.read('settings.ini', encoding='utf-8')
cfg = cfg['DEFAULT']

setup(
    name=cfg['lib_name'], version=cfg['version'], description=cfg['description'],
    keywords=cfg['keywords'], author=cfg['author'], author_email=cfg['author_email'],
    license='Apache-2.0', url=cfg['git_url'], python_requires='>=' + cfg['min_python'],
    long_description=Path('README.md').read_text(encoding='utf-8'),
    long_description_content_type='text/markdown',
    packages=find_packages(include=[cfg['lib_path'], cfg['lib_path'] + '.*']),
    package_data={cfg['lib_path'] + '.papers': ['claims.csv'], cfg['lib_path'] + '.lab': ['laboratory.ipynb']},
    install_requires=shlex.split(cfg['requirements']),
    extras_require={k: shlex.split(cfg[f'{k}_requirements']) for k in ('dev', 'lab', 'cluster', 'search')},
    entry_points={'console_scripts': shlex.split(cfg['console_scripts']),
                  'nbdev': [f"{cfg['lib_path']}={cfg['lib_path']}._modidx:d"]},
    include_package_data=True, zip_safe=False)
