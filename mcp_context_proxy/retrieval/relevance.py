"""Calibration of relevance: general requests that tell how near a query comes to anything at all.

A cosine means little by itself; how far the best tool stands out from these requests says more
(`scoring.evidence`). They are requests that people make to tools in general, written down without a look at
any set of tools that is measured; half of them serve nearly as well.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mcp_context_proxy.config import EmbeddingConfig

Calibration: TypeAlias = float | NDArray[np.float32] | Literal["anything"]
"""Decides how near the best item must be for anything to be meant: vectors of general requests, a cosine, or,
for a model of which nothing is known, ``anything``."""

STRONG_COVERAGE = 0.6
"""Share of a query's idf that the best item must have for its words alone to say that something is meant."""

BACKGROUND = """\
get the weather forecast for a city
send an email to a recipient
search the web for a query
create a calendar event or meeting
read a file from disk
write text to a file
list the files in a folder
translate text into another language
convert one currency into another
get the price of a stock
get the price of a cryptocurrency
get the latest news headlines
find restaurants near a place
book a table at a restaurant
search for flights between two airports
book a hotel room
find directions between two places
geocode an address
search for a movie
recommend a film or television series
search for music, songs and artists
play a song or control playback
find recipes by ingredient
calculate nutrition and calories
plan a workout or fitness exercise
track health data and symptoms
book an appointment with a doctor
find a job or vacancy
write or improve a resume
search for products in a shop
place an order
track a parcel or shipment
make a payment or transfer money
check a bank account balance
send an invoice to a customer
calculate a mortgage or loan
file a tax return
manage insurance policies
buy or rent real estate
search for houses and apartments
book a taxi or rent a car
check traffic and public transport
plan a trip and itinerary
find tourist attractions
generate an image from a description
edit or resize an image
recognise objects in a picture
generate a video
transcribe speech to text
convert text into speech
summarise a long document
extract text from a PDF
create a presentation with slides
edit a spreadsheet
create a chart or diagram
solve a mathematical equation
add two numbers
compute statistics of data
convert units of measure
get the current time in a time zone
set a timer, alarm or reminder
manage a to-do list of tasks
take notes
create a page in a knowledge base
search for messages in a chat channel
send a chat message to a person
make a phone call
send an SMS
schedule a social media post
get posts of a user on social media
search for videos on a platform
get comments and likes of a video
create an issue in a project tracker
list pull requests of a repository
commit changes to version control
search for code in a repository
run a shell command
execute Python code
query a database with SQL
insert a record into a table
create a database schema
deploy an application to the cloud
list containers and pods
read server logs and metrics
monitor an alert or incident
manage users and permissions
create or reset a password
log in to an account
encrypt or hash text
scan for security vulnerabilities
look up a domain name or IP address
open a page in a browser and click
take a screenshot of a page
fetch the content of a URL
download a file from the internet
search for scientific papers
look up an encyclopedia article
define a word or find synonyms
check grammar and spelling
write a poem or story
tell a joke
play a game
get sports results and fixtures
get statistics of a player or team
generate a quiz or flash cards
find a course to learn a subject
answer a question about history
look up a chemical element or compound
find genes, proteins or mutations
search for clinical trials and drugs
predict the properties of a molecule
get astronomy pictures and planets
calculate a horoscope or tarot reading
get information about an animal or pet
care for plants in a garden
find charities and donate
search for laws and court cases
draft a legal contract
look up a company profile
manage customers in a CRM
create a marketing campaign
analyse search engine rankings and keywords
design a logo or brand
create a website or landing page
shorten a link or create a QR code
generate random numbers or test data
parse JSON, XML or CSV data
compare two texts
classify the sentiment of a text
detect the language of a text
ask a language model
search documents by meaning
remember a fact about the user
think step by step
control lights and heating at home
read data from a sensor or device
control a robot or machine
simulate a physical system
find events, concerts and tickets
buy tickets for an event
get details of a book or author
find a podcast or radio station
organise photos in an album
manage contacts in an address book
sign or share a document
conduct a survey or poll
manage employees and payroll
track working time
manage stock in a warehouse
order food for delivery
choose wine, beer or cocktails
find clothes and fashion
find a gift
get a quote or inspiration
get religious texts and prayer times
look up public holidays
get data about countries and cities
get satellite images or maps
check air quality and pollen
get information about vehicles
find charging stations and fuel prices
look up a postal code
validate an email address or phone number
convert a file into another format
compress or unpack an archive
render a 3D model
edit audio
remove the background of a picture
train or evaluate a machine learning model
run an automated test
format or lint source code
find documentation of a library
manage packages and dependencies
restart or stop a service
back up and restore data
cancel or reschedule a booking
return a product and request a refund
rate or review a product
report a problem to support
look up patents and trademarks
plan an event or wedding
make a reservation for a meeting room
get exchange rates
trade shares and options
analyse a portfolio
get blockchain transactions and wallets
mint or list tokens
raise or manage a budget
make an emergency call
repair a household appliance
call a cleaner or craftsman
enrol in a school or university
manage students and grades
write a lesson plan
""".splitlines()
"""Short requests from many fields, one a line."""

VECTORS = Path(__file__).with_name("background.npy")
"""Their vectors by the packaged model, as float16, written by ``scripts/build_background.py``: to embed them
at the first search of every new store would make somebody wait for most of a second."""


@cache
def packaged_background() -> NDArray[np.float32]:
    """Return the vectors of `BACKGROUND` by the packaged model, one a row."""
    stored: NDArray[np.float16] = np.load(VECTORS)
    return stored.astype(np.float32)


def calibration_for(embedding: EmbeddingConfig) -> Calibration:
    """Return the calibration for a model; ``anything`` for another model without a configured cosine."""
    if embedding.fitting_cosine is not None:
        return embedding.fitting_cosine
    return packaged_background() if embedding.packaged else "anything"
